"""Removes unused builds: stand-ins of earlier sources, emulators of earlier requirements.

A process that was started on a build keeps its files open, and its children load them again: its memory map and its
environment name them. A build that was used within a day is kept, too: two checkouts of zerobench may alternate.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerobench.common.environment_locks import unused

PREFIX = "stand_ins-"
"""Prefix of the names of stand-ins' folders; the digest of their sources follows."""
_REMOVED = ".removed-"
"""Prefix of the name of a build that is being removed."""
KEPT_S = 24 * 3600.0
"""Seconds since its last use in which a folder is not removed."""


def mark_found(stand_ins: Path) -> None:
    """Record the use of a folder in its modification time."""
    with contextlib.suppress(OSError):  # another user's: then it is not ours to remove
        os.utime(stand_ins)


def remove_outdated(current: Path, proc: Path = Path("/proc")) -> None:
    """Remove the stand-ins next to `current` that no live process uses and that were not used within a day."""
    others = (path for path in current.parent.glob(f"{PREFIX}*") if path != current)
    for path in current.parent.glob(f".{PREFIX}*"):  # where a build was killed
        if _age_s(path) > KEPT_S:
            shutil.rmtree(path, ignore_errors=True)
    for path in _unnamed([path for path in others if _age_s(path) > KEPT_S], proc):
        shutil.rmtree(path, ignore_errors=True)


def remove_old_builds(current: Path, kind: str, proc: Path = Path("/proc")) -> list[str]:
    """Remove the emulators next to `current` whose names begin with `kind`, as `remove_outdated` does; returns their
    names.
    """
    for path in current.parent.glob(f"{_REMOVED}*"):  # left by a setup that was killed
        shutil.rmtree(path, ignore_errors=True)
    others = (path for path in current.parent.glob(f"{kind}*") if path != current and path.is_dir())
    removed = []
    for path in _unnamed([path for path in others if min(map(_age_s, (path, *path.iterdir()))) > KEPT_S], proc):
        with unused(path) as is_unused:
            if is_unused:
                doomed = path.with_name(f"{_REMOVED}{path.name}.{os.getpid()}")
                path.rename(doomed)  # in one step: no program finds half of it
                shutil.rmtree(doomed, ignore_errors=True)
                removed.append(path.name)
    return removed


def _unnamed(folders: Sequence[Path], proc: Path) -> list[Path]:
    """Those of `folders` that no process names."""
    named = b"".join(_named_by_processes(proc)) if folders else b""
    return [path for path in folders if not re.search(re.escape(os.fsencode(path.name)) + rb"(?![\w-])", named)]


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # another process was first
        return 0.0


def _named_by_processes(proc: Path) -> Iterator[bytes]:
    """Memory maps and environments of processes that this user may read."""
    for process in proc.glob("[0-9]*"):
        for file in ("maps", "environ"):
            with contextlib.suppress(OSError):
                yield (process / file).read_bytes()
