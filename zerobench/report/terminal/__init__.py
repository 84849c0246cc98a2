"""`zerobench show`: the tables of a run in the terminal."""
