"""What torch's allocator on the host takes for a page-locked tensor, and what a user may ask of it."""

import pytest

from zerobench.config.trial.allocator import most_rounded_bytes, page_locked_bytes

MIB, GIB = 2**20, 2**30
CONF = "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("asked", "taken"),
    [(0, 0), (1, 1), (2, 2), (3, 4), (511, 512), (4096, 4096), (4097, 8192), (GIB, GIB), (5 * GIB, 8 * GIB)],
)
def test_a_pinned_block_is_the_next_power_of_two(asked: int, taken: int) -> None:
    assert page_locked_bytes(asked) == taken


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("", None),
        ("expandable_segments:True", None),
        ("pinned_max_round_threshold_mb:64", 64 * MIB),
        ("pinned_max_cached_size_mb:8,pinned_max_round_threshold_mb:64", 8 * MIB),
        ("pinned_max_round_threshold_mb:all", None),
    ],
)
def test_above_either_limit_nothing_is_rounded(text: str, most: int | None) -> None:
    assert most_rounded_bytes({CONF: text}) == most
    for size in (3 * MIB, 65 * MIB):
        is_rounded = most is None or size <= most
        assert page_locked_bytes(size, most) == (page_locked_bytes(size) if is_rounded else size)
