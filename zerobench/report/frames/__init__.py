"""Records as tidy pandas frames, in memory and as files: what every other view is made of."""
