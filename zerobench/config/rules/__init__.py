"""Rules that skip trials which cannot run, with the reason."""
