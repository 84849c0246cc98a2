"""`python -m zerobench.slurm.job`: batch scripts of older runs, in the queue or kept, start their trials so."""

import sys

from zerobench.launch.slurm.job.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
