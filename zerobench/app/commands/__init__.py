"""One command a file: its words and options, light to import; the work is done in ../terminal/."""
