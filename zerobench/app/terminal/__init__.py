"""The command line: ../commands/ declares the commands, the modules here do the work, app.py starts them."""
