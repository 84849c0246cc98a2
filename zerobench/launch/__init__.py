"""Start processes and watch them: ranks, users' own commands, jobs on a cluster."""
