"""Compile the kernels that a CPU can have, as `zerobench run` does before its first trial: minutes, the first time.

    python -m tests.tools.compile_kernels

In a third of the time that DeepSpeed takes (joined_compiler.py). Whoever needs one meanwhile waits for it
(torch/utils/file_baton.py); one that is there already is only loaded. A lock that nobody holds, left by a
compilation that was killed, would be waited for without end: it is removed.
"""

import os
import shutil
import sys
from pathlib import Path

from tests.tools.joined_compiler import COMPILER, JOINED
from zerobench.config.deepspeed.kernels import BUILDERS, missing
from zerobench.launch.machine.compile_locks import free_stale_locks
from zerobench.launch.run.kernels import MODULE

NEVER_LOADED = {"quantizer", "cpu_lion"}
"""The one is of GPUs, the other of an optimizer that no test trains with."""


def main() -> None:
    names = missing((name for name in BUILDERS if name not in NEVER_LOADED), os.environ)
    for line in free_stale_locks(os.environ):
        print(line, file=sys.stderr)
    os.environ["DS_ACCELERATOR"] = "cpu"
    compiler = shutil.which("c++")
    if compiler is not None:
        os.environ |= {COMPILER: compiler, JOINED: f"joined-{os.getpid()}", "JOINING_PYTHON": sys.executable}
        os.environ["PATH"] = f"{Path(__file__).with_name('compiler')}{os.pathsep}{os.environ['PATH']}"
    if names:
        os.execv(sys.executable, [sys.executable, "-m", MODULE, *names])  # noqa: S606


if __name__ == "__main__":
    main()
