"""Handing a run to Slurm: which trials share a job, what the scripts say, and what Slurm has taken."""
