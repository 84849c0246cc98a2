"""What torch's allocator on the host takes for a page-locked tensor, and what a user may ask of it."""

from pathlib import Path

import pytest
import torch

from zerobench.spec.allocator import most_rounded_bytes, page_locked_bytes

MIB, GIB = 2**20, 2**30
HEADERS = Path(torch.__file__).parent / "include"
CONF = "PYTORCH_ALLOC_CONF"


def test_the_installed_torch_rounds_pinned_blocks_of_every_size_to_a_power_of_two() -> None:
    config = (HEADERS / "c10" / "core" / "AllocatorConfig.h").read_text(encoding="utf-8")
    allocator = (HEADERS / "ATen" / "core" / "CachingHostAllocator.h").read_text(encoding="utf-8")
    assert "PowerOf2Ceil(size)" in allocator
    for limit in ("pinned_max_round_threshold_", "pinned_max_cached_size_"):  # torch 2.12 and before have none
        assert limit not in config or f"{limit}{{std::numeric_limits<size_t>::max()}}" in config


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
