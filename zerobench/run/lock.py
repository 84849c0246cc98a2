"""One runner in a run folder at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from zerobench.errors import UserError
from zerobench.folder import RunFolder


@contextmanager
def locked(run: RunFolder) -> Iterator[None]:
    """Hold the run's lock, which the kernel lets go of when its holder ends, however it ends (flock(2)).

    Raises UserError: another runner holds it.
    """
    descriptor = os.open(run.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
            raise UserError(f"RUN: {run.path} is in use by another zerobench (process {holder})") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
