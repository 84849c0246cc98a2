"""Temporary files: they replace a file completely or not at all, and those of killed processes are removed.

Their names identify the writer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from zerobench.common.file_errors import naming


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block ends, and is removed if it fails.

    Above all on a full disk, where leftovers would keep their space. A device or a pipe (/dev/null, /dev/stdout) is
    written directly: nothing can replace it. An OSError of the block names `path`.
    """
    with naming(path):
        if path.is_char_device() or path.is_fifo():
            yield path
            return
        temporary = temporary_name(path)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """Temporary name next to `path` that identifies its process and machine (remove_leftovers).

    A shared folder may have another machine's files.
    """
    return path.with_name(f".{path.name}.{os.getpid()}.{_this_machine()}-{os.urandom(4).hex()}{_TEMPORARY}")


def remove_leftovers(folder: Path, *, is_whole: bool = False) -> list[Path]:
    """Remove temporary files of dead processes of this machine in `folder`, or below it with `is_whole`; returns them.

    Those of other machines and of live processes stay.
    """
    removed = []
    for path in sorted(folder.rglob(f".*{_TEMPORARY}") if is_whole else folder.glob(f".*{_TEMPORARY}")):
        match = _LEFTOVER.fullmatch(path.name)
        if match is None or match["machine"] not in {None, _this_machine()} or _is_alive(int(match["pid"])):
            continue
        with contextlib.suppress(OSError):  # another run was first, or it is another user's
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            removed.append(path)
    return removed


_TEMPORARY = ".tmp"
_LEFTOVER = re.compile(r"\..+\.(?P<pid>\d{1,9})(\.((?P<machine>[0-9a-f]{4})-)?[0-9a-f]{8})?\.tmp", re.DOTALL)
"""A temporary name; earlier versions did not include the machine."""


def _this_machine() -> str:
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:4]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
