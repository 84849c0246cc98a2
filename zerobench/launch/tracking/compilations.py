"""Report torch's wait for another process's compilation in users' processes, and end it if that process is dead.

A process that finds a kernel's lock waits silently until the lock file is gone, forever if its holder was killed; then
it loads what the holder should have compiled (torch/utils/cpp_extension.py, _jit_compile).
"""

from __future__ import annotations

import sys
import time
from functools import wraps
from pathlib import Path
from typing import Any

from torch.utils.file_baton import FileBaton

from zerobench.launch.machine.compile_locks import Holder, holder_of, stays_dead, take_over

_LOOK_S = 1.0
"""Seconds between two looks at the lock's holder."""
_TOLD_AFTER_S = 5.0


def guard_compilations() -> None:
    """Make torch compile in place of a dead holder, and report its waits; once per process."""
    baton: Any = FileBaton
    if hasattr(baton.try_acquire, "__wrapped__"):
        return
    baton.try_acquire = _acquire_or_take_over(baton.try_acquire)
    baton.wait = _wait_until_dead(baton.wait)


def _acquire_or_take_over(try_acquire: Any) -> Any:
    @wraps(try_acquire)
    def guarded(self: Any) -> bool:
        if try_acquire(self):
            return True
        self.fd = take_over(Path(self.lock_file_path))
        if self.fd is None:
            return False
        _tell(f"took over the lock of an interrupted compilation, compiling: {self.lock_file_path}")
        return True

    return guarded


def _wait_until_dead(wait: Any) -> Any:
    @wraps(wait)
    def guarded(self: Any) -> None:
        lock, began_s = Path(self.lock_file_path), time.monotonic()
        next_s, is_told = began_s + _LOOK_S, False
        while lock.exists():
            time.sleep(self.wait_seconds)
            if time.monotonic() < next_s:
                continue
            next_s = time.monotonic() + _LOOK_S
            if stays_dead(lock):
                # This call of torch's does not compile any more: it would load what was never made.
                raise RuntimeError(f"the compilation that holds {lock} was interrupted; start the training again")
            if not is_told and time.monotonic() - began_s > _TOLD_AFTER_S:
                is_told = True
                unknown = f"waiting for {lock}: cannot tell whether its compilation still runs; if not, remove it"
                is_alive = holder_of(lock) is Holder.ALIVE
                _tell(f"waiting for another process that compiles: {lock}" if is_alive else unknown)

    return guarded


def _tell(line: str) -> None:
    print(f"zerobench: {line}", file=sys.stderr, flush=True)  # noqa: T201 -- a user's process
