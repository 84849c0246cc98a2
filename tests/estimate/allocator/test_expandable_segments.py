"""The model of expandable segments: each rule by hand; against torch's own allocator: tests/emulator."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobench.estimate.allocator.caching_allocator import OutOfMemory
from zerobench.estimate.allocator.expandable_segments import ExpandableAllocator

MIB = 2**20
PAGE = 20 * MIB


RULES: dict[str, tuple[list[int | tuple[int, int]], int, int]] = {
    "pages are mapped as they are needed": ([30 * MIB], 2 * PAGE, 30 * MIB),
    "a block grows the range by what it lacks": ([30 * MIB, 30 * MIB], 3 * PAGE, 60 * MIB),
    "what was freed serves a larger block with its neighbour": ([*[PAGE] * 4, ~1, ~2, 2 * PAGE], 4 * PAGE, 4 * PAGE),
    "a freed block is taken again by one of its size": ([PAGE, ~0, PAGE], PAGE, PAGE),
    "small blocks share a page": ([1000, MIB], 2 * MIB, 1024 + MIB),
    "large blocks lie in pages of their own": ([1000, MIB + 1], 2 * MIB + PAGE, 1024 + MIB + 512),
    "each stream has ranges of its own": ([(PAGE, 7), ~0, PAGE], 2 * PAGE, PAGE),
    "nothing is taken for nothing": ([0], 0, 0),
}
"""Allocations by size, on a stream or none, and ~n frees the n-th of them; what is reserved and allocated then."""


@pytest.mark.parametrize(("events", "reserved", "allocated"), RULES.values(), ids=RULES)
def test_each_rule_reserves_what_torch_reserves(
    events: list[int | tuple[int, int]], reserved: int, allocated: int
) -> None:
    allocator = ExpandableAllocator()
    keys = itertools.count()
    for event in events:
        if isinstance(event, int) and event < 0:
            allocator.free(~event)
        else:
            allocator.malloc(next(keys), *(event if isinstance(event, tuple) else (event,)))
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (reserved, allocated)


def test_an_emptied_cache_gives_back_whole_pages_that_nothing_lies_in() -> None:
    allocator = ExpandableAllocator()
    for key, size in enumerate((30 * MIB, 50 * MIB, 10 * MIB)):
        allocator.malloc(key, size)
    allocator.free(1)  # from 30 to 80 MiB: the pages from 40 to 80
    assert (allocator.reserved_bytes, allocator.occupied_bytes) == (5 * PAGE, 3 * PAGE)
    allocator.empty_cache()
    assert allocator.reserved_bytes == allocator.occupied_bytes == 3 * PAGE
    allocator.malloc(3, 45 * MIB)  # the gap of 50 MiB, mapped again
    assert allocator.reserved_bytes == 5 * PAGE


def test_free_pages_of_one_stream_are_not_occupied_while_another_is_given_its_own() -> None:
    allocator = ExpandableAllocator()
    allocator.malloc(1, PAGE, stream=7)
    allocator.free(1)
    allocator.malloc(2, PAGE)
    assert (allocator.reserved_bytes, allocator.occupied_bytes, allocator.peak_occupied_bytes) == (2 * PAGE, PAGE, PAGE)


def test_pages_are_given_back_before_an_allocation_fails() -> None:
    allocator = ExpandableAllocator(capacity_bytes=4 * PAGE)
    allocator.malloc(1, 3 * PAGE, stream=1)
    allocator.free(1)
    allocator.malloc(2, 4 * PAGE)
    assert (allocator.alloc_retries, allocator.reserved_bytes) == (1, 4 * PAGE)
    with pytest.raises(OutOfMemory):
        allocator.malloc(3, PAGE)
    assert allocator.alloc_retries == 2


def test_peaks_begin_anew_from_what_is_held() -> None:
    allocator = ExpandableAllocator()
    allocator.malloc(1, 3 * PAGE)
    allocator.free(1)
    allocator.reset_peaks()
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (0, 3 * PAGE)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 90 * MIB), st.integers(0, 2)), max_size=60))
def test_counts_add_up_whatever_comes(steps: list[tuple[bool, int, int]]) -> None:
    allocator = ExpandableAllocator()
    live: dict[int, int] = {}
    for key, (frees, size, stream) in enumerate(steps):
        if frees and live:
            allocator.free(live.popitem()[0])
        else:
            allocator.malloc(key, size, stream)
            live[key] = size
        assert allocator.requested_bytes == sum(live.values())
        assert allocator.requested_bytes <= allocator.allocated_bytes <= allocator.occupied_bytes
        assert allocator.occupied_bytes <= allocator.reserved_bytes <= allocator.peak_reserved_bytes
    for key in live:
        allocator.free(key)
    assert (allocator.allocated_bytes, allocator.occupied_bytes) == (0, 0)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
