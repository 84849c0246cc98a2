"""Locks of a run folder: one runner takes the whole run, or several take it trial by trial.

`zerobench run` holds the run alone. Jobs of a cluster share it, each holding the trial that it runs. The operating
system releases a lock when its holder ends, however it ends (flock(2)); on NFS and Lustre the file server does, if
mounted with locks. Without locks runners go on: Slurm starts a job's tasks once, and `zerobench submit --resume` leaves
queued ones alone.

A folder received from others may also link to any file, so links that lead out of it are refused.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.records.folder import RunFolder, TrialFolder


def refuse_links(run: RunFolder, trial_ids: Iterable[str]) -> None:
    """Raise UserError if the run, or the folder of a trial to run, contains a link that leads out of it.

    Ranks, logs and moves use these names directly. Links within the run are the user's.
    """
    inside = Path(os.path.realpath(run.path))
    for path in _links(run, trial_ids):
        if not Path(os.path.realpath(path)).is_relative_to(inside):
            raise UserError(f"RUN: {path} is a link out of the run folder ({path.readlink()})")


def _links(run: RunFolder, trial_ids: Iterable[str]) -> Iterator[Path]:
    yield from _links_in(run.path, deep=False)
    for shelf in (run.trials, run.slurm, run.nodes):
        yield from _links_in(shelf, deep=False)
    for trial_id in trial_ids:
        yield from _links_in(run.trial(trial_id).path, deep=True)


def _links_in(folder: Path, *, deep: bool) -> Iterator[Path]:
    if not folder.is_dir():
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif deep and entry.is_dir(follow_symlinks=False):
                yield from _links_in(Path(entry.path), deep=True)


_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def locked(run: RunFolder) -> AbstractContextManager[None]:
    """Hold the run alone.

    Raises UserError if another runner is in it.
    """
    return _run_held(run, fcntl.LOCK_EX)


def shared(run: RunFolder) -> AbstractContextManager[None]:
    """Hold the run together with other jobs of a cluster.

    Raises UserError if a runner holds it alone.
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
    """Hold one trial; yields False if another job holds it."""
    with _held(folder.lock, fcntl.LOCK_EX) as holder:
        yield holder is None


@contextmanager
def _held(path: Path, how: int) -> Iterator[str | None]:
    """Hold the lock at `path`; yields None, or the text its present holder wrote."""
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
    """Open the lock file at `path`, creating it if missing.

    It is written to, so it must be the run's own: a folder received from others may hold a link to another file.

    Raises UserError if it is a link, or not a regular file with a single name.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise
        raise _no_lock(path) from None
    # It is written to, so it must be the run's own: a folder received from others may hold a link to another file.
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise _no_lock(path)
    return descriptor


def _no_lock(path: Path) -> UserError:
    return UserError(f"RUN: {path} is a link or not a regular file; remove it and try again")
