"""The files of a run, and how they are read."""
