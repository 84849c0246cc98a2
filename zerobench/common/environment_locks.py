"""Locks of an environment: one setup that changes it, or any number of programs that run in it.

The kernel releases a lock when the last process that has it open ends, however it ends (flock(2)). Commands started by
setup inherit the lock: pip continues to write after its setup was killed, and the next setup waits for it. On a file
system without locks, both proceed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

LOCK = ".lock"
"""Name of the lock file, in the environment's folder."""

_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_IN_USE: dict[Path, int] = {}
"""Descriptors with which this process keeps its environments locked until it ends, by folder."""


def keep_in_use(folder: Path) -> None:
    """Prevent setups from changing or removing `folder` while this process lives; waits for a running one.

    No effect if the folder cannot be written and has no lock file.
    """
    with contextlib.suppress(OSError):
        if folder in _IN_USE and _is_current(_IN_USE[folder], folder):
            os.utime(folder / LOCK)
            return
        _IN_USE[folder] = _lock(folder, fcntl.LOCK_SH)
        os.utime(folder / LOCK)  # the time of its last use, by which an old one is removed


@contextlib.contextmanager
def set_up_alone(folder: Path, must_change: Callable[[], bool], say: Callable[[str], None]) -> Iterator[int]:
    """Lock `folder` for a setup: exclusively if `must_change`, else shared with programs that run in it.

    Yields the descriptor that the commands of the setup inherit. Waits for conflicting locks, and reports that.
    """
    descriptor = -1
    while True:
        alone = must_change()
        descriptor = _lock_or_wait(folder, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, say)
        if alone or not must_change():  # another setup may have begun or ended meanwhile
            break
        os.close(descriptor)
    try:
        if alone:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Yield whether no program runs in `folder`; none can enter it within the block."""
    try:
        descriptor = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def _lock_or_wait(folder: Path, how: int, say: Callable[[str], None]) -> int:
    try:
        return _lock(folder, how | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"  waiting for {_lock_holder(folder)}; lock: {folder / LOCK}")
        return _lock(folder, how)


def _lock_holder(folder: Path) -> str:
    """Holder of the lock, for users."""
    try:
        os.close(_lock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except OSError:
        with contextlib.suppress(OSError):
            return f"another setup ({(folder / LOCK).read_text(errors='replace').strip()[:80]})"
        return "another setup"
    return "the programs that run in it to end"


def _lock(folder: Path, how: int) -> int:
    """Open and lock the folder's lock file. Raises BlockingIOError if `how` does not wait, else OSError."""
    while True:
        descriptor = _opened(folder / LOCK, is_shared=bool(how & fcntl.LOCK_SH))
        try:
            fcntl.flock(descriptor, how)
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                os.close(descriptor)
                raise
        if _is_current(descriptor, folder):
            return descriptor
        os.close(descriptor)  # the folder was removed or replaced while this waited


def _opened(lock: Path, *, is_shared: bool) -> int:
    try:
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if not is_shared or error.errno not in {errno.EACCES, errno.EROFS}:
            raise
    return os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)  # another user's environment


def _is_current(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), (folder / LOCK).stat())
    except OSError:
        return False
