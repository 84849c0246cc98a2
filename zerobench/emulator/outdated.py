"""Removes what was built of earlier states of the sources, and is of no use any more.

A process that was started on stand-ins keeps them open, and those that it starts load them again: its memory map and
its environment name them. What somebody found within a day stays, too: two checkouts of zerobench may take turns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "stand_ins-"
"""Begins the name of each folder of stand-ins; the digest of their sources follows."""
KEPT_S = 24 * 3600.0
"""Seconds since it was found last in which a folder is not removed."""


def mark_found(stand_ins: Path) -> None:
    """Note in a folder's time that somebody has found it."""
    with contextlib.suppress(OSError):  # another user's: then it is not ours to remove
        os.utime(stand_ins)


def remove_outdated(current: Path, proc: Path = Path("/proc")) -> None:
    """Remove the folders beside `current` that nobody has found for a day and no live process uses."""
    old = [path for path in current.parent.glob(f"{PREFIX}*") if path != current and _age_s(path) > KEPT_S]
    named = b"".join(_named_by_processes(proc)) if old else b""
    for path in old:
        if os.fsencode(path.name) not in named:
            shutil.rmtree(path, ignore_errors=True)


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:  # somebody else was first
        return 0.0


def _named_by_processes(proc: Path) -> Iterator[bytes]:
    """What each process has mapped, and its environment, as far as this user may see them."""
    for process in proc.glob("[0-9]*"):
        for file in ("maps", "environ"):
            with contextlib.suppress(OSError):
                yield (process / file).read_bytes()
