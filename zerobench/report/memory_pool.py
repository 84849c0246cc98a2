"""Gives the memory that tables leave behind back while a report goes on: V8, which draws, can use nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def given_back() -> Iterator[None]:
    """Make tables of memory that malloc owns, and have it give back to the system all that is free at the end.

    Arrow's own pool keeps what its columns held, and what Python's objects held lies in pieces between. Whoever comes
    after has the pool again that there was.
    """
    before, pool = pa.default_memory_pool(), pa.system_memory_pool()
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(before)
        pool.release_unused()
