"""Write a file beside its place and rename it: whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from zerobench.common.file_errors import naming
from zerobench.common.leftovers import temporary_name


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` for what is to take its place: it does when the block ends, and goes where it fails.

    On a full disk above all: what was begun would take room there for good. A device or a pipe (/dev/null,
    /dev/stdout) is written to as it is: nothing takes its place. An OSError of the block names `path`.
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
