"""One module per command: its help and options only, so it imports fast. ../terminal/ does the work."""
