"""Sweeps on a Slurm cluster: laid out and submitted from a login node, run inside of jobs, watched from anywhere."""
