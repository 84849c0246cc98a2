"""What a user asks of torch's allocator is obeyed by the model of it, or said not to be."""

import pytest

from zerobench.config.trial.allocator import asked_settings
from zerobench.estimate.allocator import allocator_settings
from zerobench.estimate.allocator.allocator_settings import (
    allocator_model,
    settings_notes,
    takes_latest,
    uncounted_host_notes,
)
from zerobench.estimate.allocator.caching_allocator import CachingAllocator
from zerobench.estimate.allocator.expandable_segments import ExpandableAllocator

NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def test_the_newer_variable_goes_before_the_older_as_in_torch() -> None:
    assert asked_settings({NEW: "expandable_segments:True", OLD: "max_split_size_mb:64"}) == {
        "expandable_segments": "True"
    }
    assert asked_settings({OLD: "max_split_size_mb:64"}) == {"max_split_size_mb": "64"}
    assert asked_settings({NEW: ""}) == {}


def test_a_list_in_brackets_is_one_value() -> None:
    text = "roundup_power2_divisions:[256:1,512:2,>:8], expandable_segments:True"
    assert asked_settings({NEW: text}) == {
        "roundup_power2_divisions": "[256:1,512:2,>:8]",
        "expandable_segments": "True",
    }


def test_expandable_segments_are_modelled_where_they_are_asked_for() -> None:
    assert isinstance(allocator_model(2**30, {NEW: "expandable_segments:True"}), ExpandableAllocator)
    for text in ("expandable_segments:False", "max_split_size_mb:64", ""):
        assert isinstance(allocator_model(2**30, {NEW: text}), CachingAllocator)


def test_what_is_not_modelled_is_named_with_its_value() -> None:
    [obeyed, left_out] = settings_notes(
        {NEW: "expandable_segments:True,max_split_size_mb:64,pinned_num_register_threads:8"}
    )
    assert obeyed == "torch's allocator is modelled with expandable_segments:True, as asked"
    assert "without max_split_size_mb:64, set in this environment" in left_out
    assert settings_notes({NEW: "backend:native,expandable_segments:False"}) == settings_notes({}) == []


@pytest.mark.parametrize(
    ("torch", "latest"),
    [("2.11.0+cu130", True), ("2.12.0", False), ("2.13.0+cpu", False), ("3.0", False), (None, False)],
)
def test_which_of_equal_free_blocks_is_taken_is_the_torch_releases(
    monkeypatch: pytest.MonkeyPatch, torch: str | None, latest: bool
) -> None:
    monkeypatch.setattr(allocator_settings, "_torch", lambda: torch)
    allocator = allocator_model(None, {})
    for key in range(2):
        allocator.malloc(key, 30 * 2**20)
    for key in range(2):
        allocator.free(key)
    allocator.malloc(2, 30 * 2**20)
    allocator.malloc(3, 40 * 2**20)
    assert takes_latest(torch) is latest
    assert isinstance(allocator, CachingAllocator)
    in_use = [(s.size_bytes >> 20, s.blocks[0][1]) for s in allocator.segments()]
    assert in_use == ([(40, True), (30, True), (30, False)] if latest else [(30, True), (30, False), (40, True)])


def test_limits_of_what_is_rounded_up_on_the_host_are_obeyed_and_said_to_be() -> None:
    [obeyed] = settings_notes({NEW: "expandable_segments:True,pinned_max_round_threshold_mb:64"})
    asked = "expandable_segments:True, pinned_max_round_threshold_mb:64"
    assert obeyed == f"torch's allocator is modelled with {asked}, as asked"


def test_a_segment_that_torch_page_locks_beforehand_is_said_to_be_left_out() -> None:
    [note] = uncounted_host_notes({NEW: "pinned_reserve_segment_size_mb:2048"})
    assert "without pinned_reserve_segment_size_mb:2048, set in this environment" in note
    for text in ("", "pinned_reserve_segment_size_mb:0", "pinned_max_round_threshold_mb:64"):
        assert uncounted_host_notes({NEW: text}) == []
