"""`zerobench` whose ranks are started by forked_launcher.py: python -m tests.tools.forked_zerobench run ..."""

import sys

from tests.tools.forked_launcher import PLAYED
from zerobench.cli import main
from zerobench.emulate.play import Stage
from zerobench.running import launcher

LAUNCHER = [sys.executable, "-m", "tests.tools.forked_launcher"]

if __name__ == "__main__":
    launcher.deepspeed_program = lambda: LAUNCHER
    Stage.command = lambda self: [*LAUNCHER, PLAYED]  # type: ignore[method-assign]
    main()
