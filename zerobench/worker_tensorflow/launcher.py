"""`python -m zerobench.worker_tensorflow.launcher`: older runs' commands start TensorFlow's processes so."""

import sys

from zerobench.rank.tensorflow.launcher import main

if __name__ == "__main__":
    sys.exit(main())
