"""Who may work in a run folder: one runner that takes the whole run, or several that take it a trial at a time.

`zerobench run` holds the run alone. Jobs of a cluster share it, each holding the trial that it runs. The kernel lets a
lock go when its holder ends, however it ends (flock(2)); on NFS and Lustre it is the file server that does, where they
are mounted with locks. Where they are not, runners go on without: Slurm starts a
job's tasks once, and `zerobench submit --resume` leaves those alone that are still in the queue.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.records.folder import RunFolder, TrialFolder

_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def locked(run: RunFolder) -> AbstractContextManager[None]:
    """Hold the run alone.

    Raises UserError: another runner is in it.
    """
    return _run_held(run, fcntl.LOCK_EX)


def shared(run: RunFolder) -> AbstractContextManager[None]:
    """Hold the run together with other jobs of a cluster.

    Raises UserError: a runner holds it alone.
    """
    return _run_held(run, fcntl.LOCK_SH)


@contextmanager
def _run_held(run: RunFolder, how: int) -> Iterator[None]:
    with _held(run.path / ".lock", how) as holder:
        if holder is not None:
            raise UserError(f"RUN: {run.path} is in use by another zerobench ({holder})")
        yield


@contextmanager
def trial_locked(folder: TrialFolder) -> Iterator[bool]:
    """Hold one trial; whether it could: another job may be running it."""
    with _held(folder.lock, fcntl.LOCK_EX) as holder:
        yield holder is None


@contextmanager
def _held(path: Path, how: int) -> Iterator[str | None]:
    """Hold the lock at `path`; None, or the words of whoever holds it instead."""
    descriptor = _opened(path)
    try:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            yield os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "somebody"
            return
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield None
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """The lock file at `path`, made where it is not there.

    It is written to, so it must be the run's own: a folder that somebody sent may hold a link to another file.

    Raises UserError: it is a link, or no plain file of one name.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise
        raise _no_lock(path) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise _no_lock(path)
    return descriptor


def _no_lock(path: Path) -> UserError:
    return UserError(f"RUN: {path} is a link or not a regular file; remove it and try again")
