"""Lock files under which torch compiles DeepSpeed's kernels; a process that is killed leaves its lock behind.

A process that finds such a file waits until it is gone, forever (torch/utils/file_baton.py): one killed compilation
would hang every later trial. The compiling process keeps the file open, and the operating system knows which files are
open, in containers too: it grants a write lease (fcntl(2), F_SETLEASE) only on a file that nobody else has open. Only
such a lock is removed, and only on a local file system: elsewhere another machine may hold it without the lease
noticing, so it is only reported.
"""

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from zerobench.config.deepspeed.kernels import build_root


class Holder(Enum):
    """Process that has a lock file open."""

    ALIVE = "a running process"
    DEAD = "no running process"
    UNKNOWN = "unknown"


_REMOVAL_S = 0.2
"""Longest time in seconds between closing a lock and removing it."""
_LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
"""File systems that a single machine mounts."""


def free_stale_locks(environ: Mapping[str, str], *, tell_unknown: bool = True) -> list[str]:
    """Remove the locks, of any age, whose holders are dead. Returns a line for each, and with `tell_unknown` for each
    whose holder is unknown.
    """
    lines = []
    for lock in locks(environ):
        is_dead = stays_dead(lock)
        with _holder_of(lock) as holder:
            if is_dead and holder is Holder.DEAD:
                lock.unlink(missing_ok=True)
                lines.append(f"removed the lock of an interrupted compilation: {lock}")
            elif holder is Holder.UNKNOWN and tell_unknown:
                lines.append(
                    f"{lock}: cannot tell whether its compilation still runs; if not, remove it: runs that "
                    "need this kernel would wait forever"
                )
    return lines


def take_over(lock: Path) -> int | None:
    """Hold the lock of a dead compilation in its place; returns its descriptor, None if its holder may live."""
    if not stays_dead(lock):
        return None
    # The file stays: if it vanished, another process would take the kernel for compiled.
    with _opened_with_holder(lock) as (descriptor, holder):
        return os.dup(descriptor) if holder is Holder.DEAD else None


def stays_dead(lock: Path) -> bool:
    """Return True if the holder is dead and not about to remove the lock."""
    if holder_of(lock) is not Holder.DEAD:
        return False
    # torch closes its lock first and removes it then: a holder may look dead in between.
    time.sleep(_REMOVAL_S)
    return holder_of(lock) is Holder.DEAD


def locks(environ: Mapping[str, str]) -> list[Path]:
    """List the locks: `<kernel>/lock`, or `<python>_<cuda>/<kernel>/lock` in torch's default folder."""
    root = build_root(environ)
    return [path for pattern in ("*/lock", "*/*/lock") for path in root.glob(pattern)]


def holder_of(lock: Path) -> Holder:
    """Return the lock's holder, without side effects."""
    with _holder_of(lock) as holder:
        return holder


@contextmanager
def _holder_of(lock: Path) -> Iterator[Holder]:
    """Yield the holder. While it is DEAD, no other process can come to the same conclusion."""
    with _opened_with_holder(lock) as (_, holder):
        yield holder


@contextmanager
def _opened_with_holder(lock: Path) -> Iterator[tuple[int, Holder]]:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        gone_or_asked_by_another = {errno.ENOENT, errno.EWOULDBLOCK}
        yield -1, Holder.ALIVE if error.errno in gone_or_asked_by_another else Holder.UNKNOWN
        return
    try:
        yield descriptor, _leased(descriptor, lock) if _is_local(lock) else Holder.UNKNOWN
    finally:
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)  # a duplicate may outlive it
        os.close(descriptor)


def _is_local(path: Path) -> bool:
    """Return True if `path` is on a file system that no other machine can reach (proc_pid_mountinfo(5))."""
    whole = os.path.realpath(path)
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    mounts = [(line.split()[4], line.partition(" - ")[2].split()[0]) for line in lines]
    holding = [(len(point), kind) for point, kind in mounts if Path(whole).is_relative_to(point)]
    return bool(holding) and max(holding, key=lambda mount: mount[0])[1] in _LOCAL


def _leased(descriptor: int, lock: Path) -> Holder:
    try:
        # Who opens a leased file makes the kernel tell the lessee, by default with a signal that ends it.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        is_same = os.path.samestat(os.fstat(descriptor), lock.stat())
    except FileNotFoundError:
        return Holder.ALIVE  # released meanwhile
    except OSError as error:
        return Holder.ALIVE if error.errno == errno.EAGAIN else Holder.UNKNOWN
    return Holder.DEAD if is_same else Holder.ALIVE
