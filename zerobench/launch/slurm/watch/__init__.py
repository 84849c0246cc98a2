"""Status of a submitted run, joined from its folder and Slurm's states of its jobs."""
