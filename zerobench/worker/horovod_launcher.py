"""`python -m zerobench.worker.horovod_launcher`: older runs' commands start Horovod's ranks so."""

import sys

from zerobench.rank.loop.horovod_launcher import main

if __name__ == "__main__":
    sys.exit(main())
