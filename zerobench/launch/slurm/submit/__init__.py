"""Submit a run to Slurm: group trials into jobs, write scripts, call sbatch."""
