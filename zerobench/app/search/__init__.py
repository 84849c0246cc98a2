"""Plans, and searches for the largest that fits, whose tries are runs, predicted or measured."""
