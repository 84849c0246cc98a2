"""Tables made while a report goes on leave nothing in Arrow's own pool."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zerobench.report.memory_pool import given_back


def test_tables_are_made_of_memory_that_malloc_owns_and_it_is_told_to_give_back_what_is_free() -> None:
    with given_back():
        pool = pa.default_memory_pool()
        table = pa.table({"a": list(range(1000))})
        held = pool.bytes_allocated()
        assert pool.backend_name == "system"
        assert held >= table.nbytes
        del table
    assert pool.bytes_allocated() < held


def test_the_pool_that_there_was_is_there_again_even_after_an_error() -> None:
    other = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(other)
    try:
        with pytest.raises(ValueError, match="stop"), given_back():
            raise ValueError("stop")
        pa.array(range(1000))
        assert other.num_allocations() > 0
    finally:
        pa.set_memory_pool(before)
