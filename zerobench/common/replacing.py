"""Writes a file under a temporary name and renames it: complete or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from zerobench.common.file_errors import naming
from zerobench.common.leftovers import temporary_name


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
