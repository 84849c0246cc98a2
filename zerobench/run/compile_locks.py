"""The lock files under which torch compiles DeepSpeed's kernels, which a process that is killed leaves behind.

Whoever finds such a file waits until it is gone, for ever (torch/utils/file_baton.py): a trial that is ended while it
compiles would hang every later one. Who compiles keeps the file open, so one that came up while our trial ran, and
that no process of this machine has open once the trial has ended, is left over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil


def remove_left_over(since_s: float, environ: Mapping[str, str]) -> list[Path]:
    """Remove the locks that came up after `since_s` (Unix time) and that nobody holds; their paths.

    Call it only after the trial has ended, and not where other machines compile into the same folder at that time.
    """
    removed = []
    for lock in _locks(build_root(environ)):
        if _made_at_s(lock) >= since_s and not _is_held(lock):
            lock.unlink(missing_ok=True)
            removed.append(lock)
    return removed


def left_over(environ: Mapping[str, str]) -> list[Path]:
    """The locks that nobody on this machine holds, whenever they came up."""
    return [lock for lock in _locks(build_root(environ)) if not _is_held(lock)]


def build_root(environ: Mapping[str, str]) -> Path:
    """Where torch compiles extensions (torch/utils/cpp_extension.py, _get_build_directory; torch/_appdirs.py)."""
    named = environ.get("TORCH_EXTENSIONS_DIR")
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(named) if named else Path(cache, "torch_extensions")


def _locks(root: Path) -> Iterator[Path]:
    """`<kernel>/lock`, or `<python>_<cuda>/<kernel>/lock` in torch's default folder."""
    yield from (path for pattern in ("*/lock", "*/*/lock") for path in root.glob(pattern))


def _made_at_s(lock: Path) -> float:
    try:
        return lock.stat().st_mtime
    except OSError:  # just released
        return 0.0


def _is_held(lock: Path) -> bool:
    """Whether a process of this user has the file open; one that cannot be looked into counts as holding nothing."""
    path = os.path.realpath(lock)
    for process in psutil.process_iter():
        try:
            if any(file.path == path for file in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue
    return False
