"""The most that occupied segments held is read from the allocator's history (torch's own: tests/emulator)."""

from typing import Any

import pytest

from zerobench.config.hardware.hardware import load_catalogue
from zerobench.config.hardware.overheads import workspace_of
from zerobench.rank.ledger.allocator_snapshot import chosen_size, peak_occupied


@pytest.mark.parametrize(
    ("configured", "nbytes"),
    [("", 8519680), (":4096:2:16:8", 8519680), (":16:8", 131072), (":4096:8", 33554432), ("what", 8519680)],
)
def test_the_workspace_is_what_the_variable_asks_for(configured, nbytes):
    assert chosen_size(8, {"CUBLAS_WORKSPACE_CONFIG": configured}) == nbytes


def test_of_every_catalogued_gpu_it_is_the_size_that_predictions_take():
    capabilities = {gpu.name: gpu.compute_capability for gpu in load_catalogue() if gpu.compute_capability}
    sizes = {name: chosen_size(int(capability.split(".")[0]), {}) for name, capability in capabilities.items()}
    assert sizes == {name: workspace_of(name).workspace_bytes for name in capabilities}


A, B, C, D = 0x1000, 0x2000, 0x3000, 0x4000
STATS = {
    "reserved_bytes.all.peak": 200,
    "requested_bytes.all.peak": 87,
    "allocated_bytes.all.peak": 90,
    "inactive_split_bytes.all.peak": 60,
}


def segment(address: int, nbytes: int, *requested: int, **said: Any) -> dict[str, Any]:
    """One whose blocks hold so many bytes; a block of 0 is free."""
    blocks = [{"state": "active_allocated" if size else "inactive", "requested_size": size} for size in requested]
    return {"address": address, "total_size": nbytes, "blocks": blocks, **said}


def entry(action: str, address: int, nbytes: int) -> dict[str, Any]:
    return {"action": "".join(list(action)), "addr": address, "size": nbytes}  # torch's words are strings of its own


AT_END = [segment(C, 60, 0), segment(A, 20, 5), segment(D, 80, 0)]
"""D stays empty; B is given back, and C, which the phase takes, is emptied."""

PHASE = [
    entry("alloc", B + 8, 30),
    entry("alloc", B + 64, 2),
    entry("segment_alloc", C, 60),
    entry("alloc", C, 50),  # now A, B and C are occupied, by 5, 32 and 50 bytes
    entry("free_requested", B + 8, 30),
    entry("free_completed", B + 8, 30),
    entry("free_completed", C, 50),
    entry("free_completed", B + 64, 2),
    entry("segment_free", B, 40),
    entry("snapshot", 0, 5),
]


def test_segments_in_which_nothing_lies_do_not_count_and_those_that_the_phase_takes_or_gives_back_do() -> None:
    assert peak_occupied(PHASE, AT_END, STATS) == 20 + 40 + 60


@pytest.mark.parametrize(("split", "most"), [(60, 150), (160, 200)])
def test_of_a_history_that_is_cut_off_the_counters_bound_it(split: int, most: int) -> None:
    assert peak_occupied(PHASE[-3:], AT_END, STATS | {"inactive_split_bytes.all.peak": split}) == most


def test_expandable_segments_count_whole() -> None:
    assert peak_occupied(PHASE, [*AT_END[1:], segment(C, 60, 0, is_expandable=True)], STATS) == 200
