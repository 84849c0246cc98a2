"""How a submitted run stands: what the run folder shows and what Slurm says of its jobs, put together."""
