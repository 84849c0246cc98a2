"""Compile DeepSpeed's kernels for a CPU as DeepSpeed itself does at their first use, one after the other.

    python -m tests.tools.compile_kernels

Which takes minutes. Whoever needs one meanwhile waits for it (torch/utils/file_baton.py); one that is there already is
only loaded. A lock that nobody holds, left by a compilation that was killed, would be waited for without end: it is
removed. A kernel that cannot be compiled here is named, and the rest compiled all the same.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the compilation looks for ninja

KERNELS = ("ShareMemCommBuilder", "CPUAdamBuilder", "FusedAdamBuilder", "AsyncIOBuilder")
"""First the one that every run on a CPU loads."""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # torch then removes its lock
    from deepspeed.accelerator import get_accelerator

    from zerobench.run.compile_locks import left_over

    for lock in left_over(os.environ):
        lock.unlink(missing_ok=True)
    for name in KERNELS:
        try:
            get_accelerator().create_op_builder(name).load(verbose=False)
        except Exception as error:  # noqa: BLE001 - the test that needs it says so too
            print(f"{name}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
