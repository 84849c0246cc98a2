"""Failed file operations in users' terms: file, reason, and remedy."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

WORKING_DIRECTORY_GONE = "working directory: deleted; change to one that exists (cd)"


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an OSError of the block name `path`: Python names no file if a write fails, and libraries name another."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        # Python names no file where a write failed, and others the temporary one.
        names_another = error.filename is None or Path(os.fsdecode(error.filename)).name.startswith(f".{path.name}.")
        if error.errno is None or not names_another:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def failure_of(error: OSError, otherwise: object = "a file") -> str:
    """`FILE: REASON; REMEDY` for a failed operation on a file, or on `otherwise` if the error names none."""
    if is_missing_working_directory(error):
        return WORKING_DIRECTORY_GONE
    reason = error.strerror or str(error)
    named = otherwise if error.filename is None else os.fsdecode(error.filename)
    return "; ".join(filter(None, [f"{named}: {reason}", remedy(error)]))


def is_missing_working_directory(error: OSError) -> bool:
    """Return whether the operation failed because the working directory was deleted."""
    is_absolute = error.filename is not None and Path(os.fsdecode(error.filename)).is_absolute()
    return error.errno == errno.ENOENT and not is_absolute and is_working_directory_gone()


def is_working_directory_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def remedy(error: OSError) -> str | None:
    """Remedy if there is no space or permission to write, None for other errors."""
    actions = {
        errno.ENOSPC: "free space there",
        errno.EDQUOT: "free space there",
        errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
        errno.EROFS: "mount it writable",
    }
    action = actions.get(error.errno or 0)
    return f"{action}, or write elsewhere (--out, --reports)" if action else None
