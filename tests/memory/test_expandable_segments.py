"""The model of expandable segments: each rule by hand; against torch's own allocator: tests/emulator."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobench.memory.caching_allocator import OutOfMemory
from zerobench.memory.expandable_segments import ExpandableAllocator

MIB = 2**20
PAGE = 20 * MIB
SMALL_PAGE = 2 * MIB


def test_pages_are_mapped_as_they_are_needed_and_a_block_grows_the_range_by_what_it_lacks() -> None:
    allocator = ExpandableAllocator()
    allocator.malloc(1, 30 * MIB)
    assert allocator.reserved_bytes == 2 * PAGE
    allocator.malloc(2, 30 * MIB)  # 10 MiB of the second page, and a third
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (3 * PAGE, 60 * MIB)


def test_what_was_freed_serves_a_larger_block_together_with_its_neighbour() -> None:
    allocator = ExpandableAllocator()
    for key in range(4):
        allocator.malloc(key, PAGE)
    allocator.free(1)
    allocator.free(2)
    allocator.malloc(5, 2 * PAGE)
    assert allocator.reserved_bytes == 4 * PAGE


def test_a_freed_block_is_taken_again_by_one_of_its_size() -> None:
    allocator = ExpandableAllocator()
    allocator.malloc(1, PAGE)
    allocator.free(1)
    allocator.malloc(2, PAGE)
    assert (allocator.reserved_bytes, allocator.occupied_bytes) == (PAGE, PAGE)


def test_small_blocks_lie_in_pages_of_their_own() -> None:
    allocator = ExpandableAllocator()
    allocator.malloc(1, 1000)
    allocator.malloc(2, MIB)
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (SMALL_PAGE, 1024 + MIB)
    allocator.malloc(3, MIB + 1)
    assert allocator.reserved_bytes == SMALL_PAGE + PAGE


def test_each_stream_has_ranges_of_its_own() -> None:
    allocator = ExpandableAllocator()
    allocator.malloc(1, PAGE, stream=7)
    allocator.free(1)
    allocator.malloc(2, PAGE)
    assert allocator.reserved_bytes == 2 * PAGE


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


def test_pages_are_given_back_before_an_allocation_fails() -> None:
    allocator = ExpandableAllocator(capacity_bytes=4 * PAGE)
    allocator.malloc(1, 3 * PAGE, stream=1)
    allocator.free(1)
    allocator.malloc(2, 4 * PAGE)
    assert (allocator.alloc_retries, allocator.reserved_bytes) == (1, 4 * PAGE)
    with pytest.raises(OutOfMemory):
        allocator.malloc(3, PAGE)
    assert allocator.alloc_retries == 2


def test_a_key_in_use_and_a_size_below_zero_are_refused_and_nothing_is_taken_for_nothing() -> None:
    allocator = ExpandableAllocator()
    allocator.malloc(1, 0)
    with pytest.raises(ValueError, match=r"malloc\(1, 5\)"):
        allocator.malloc(1, 5)
    with pytest.raises(ValueError, match=r"malloc\(2, -1\)"):
        allocator.malloc(2, -1)
    allocator.free(1)
    assert allocator.reserved_bytes == 0


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
