"""`zerobench` whose ranks are started by forked_launcher.py: python -m tests.tools.forked_zerobench run ..."""

import sys

from zerobench.cli import main
from zerobench.running import launcher

LAUNCHER = [sys.executable, "-m", "tests.tools.forked_launcher"]

if __name__ == "__main__":
    launcher.deepspeed_program = lambda: LAUNCHER
    main()
