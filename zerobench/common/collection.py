"""Disables Python's garbage collector during short work with many long-lived objects; returns free memory.

Collections take a tenth of the time of a table from start to end, mostly during imports.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the search for unreachable cycles within the block; reference counting continues."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def return_memory() -> Iterator[None]:
    """Return all free memory to the system at the end: unreachable cycles, then malloc's free blocks.

    V8, which draws a report's charts, cannot use memory freed by its tables.
    """
    try:
        yield
    finally:
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(0)
