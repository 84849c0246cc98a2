"""Sweeps on a Slurm cluster: submitted from a login node, run inside jobs, watched from anywhere."""
