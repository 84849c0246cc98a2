"""`zerobench` whose ranks are started by forked_launcher.py: python -m tests.tools.forked_zerobench run ..."""

import sys

from tests.tools.forked_launcher import PLAYED
from zerobench.app.terminal.app import main
from zerobench.launch.emulate.play import Stage
from zerobench.launch.run import launcher

LAUNCHER = [sys.executable, "-m", "tests.tools.forked_launcher"]

if __name__ == "__main__":
    launcher.deepspeed_program = lambda: LAUNCHER
    Stage.command = lambda self: [*LAUNCHER, PLAYED]  # type: ignore[method-assign]
    main()
