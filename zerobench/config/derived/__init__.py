"""Values that follow from a trial: batches, layouts, FLOPs, roles of ranks, step plans."""
