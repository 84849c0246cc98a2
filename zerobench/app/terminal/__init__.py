"""The command line. ../commands/ declares each command, the modules here do the work, app.py joins and starts them."""
