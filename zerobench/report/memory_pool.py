"""Gives the memory that tables leave behind back while a report goes on: V8, which draws, can use nothing of it."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def given_back() -> Iterator[None]:
    """Have all that is free given back to the system at the end: what only holds itself, then what malloc keeps."""
    try:
        yield
    finally:
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(0)
