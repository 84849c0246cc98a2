"""The command line, the searches and the Python functions: everything that a user calls."""
