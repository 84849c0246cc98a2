"""The simulated world reports the need after a refusal of its GPU's allocator, not a guess from the memory left."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from zerobench.common.malloc import MAPPED_FROM_BYTES
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.estimate.clock import trace
from zerobench.estimate.clock.trace import PageMapping
from zerobench.rank.worlds.simulation.allocator import SimulatedCounter
from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

LARGE = MAPPED_FROM_BYTES // 4
"""Elements of fp32."""


@pytest.fixture
def mapped(monkeypatch):
    """Bytes that were told, while tensors of a CPU are simulated."""
    told: list[int] = []
    monkeypatch.setattr(
        trace, "_listener", lambda item: told.append(item.nbytes) if isinstance(item, PageMapping) else None
    )
    tensors = SimulatedTensors(lambda _flops: None)
    counter = SimulatedCounter(lambda: None, tensors)
    tensors.wrote = counter.wrote
    with tensors, counter:
        yield told


def test_a_large_result_is_mapped_as_it_is_written_and_once(mapped):
    whole = torch.ones(LARGE)
    assert mapped == [MAPPED_FROM_BYTES]
    whole.mul_(2)
    whole[10:].mul_(2)
    assert mapped == [MAPPED_FROM_BYTES]
    whole * 2  # another block
    assert mapped == [MAPPED_FROM_BYTES] * 2


def test_what_malloc_keeps_is_not_mapped_anew(mapped):
    torch.ones(LARGE - 1) * 2
    assert mapped == []


def test_of_a_bucket_only_the_pages_that_are_written_are_made_ready(mapped):
    bucket = torch.empty(4 * LARGE)
    assert mapped == []
    bucket[:100].copy_(torch.ones(100))
    bucket[100:300].copy_(torch.ones(200))
    bucket[:300].div_(2)
    assert mapped == [400, 800]


MIB = 2**20
CAPACITY = 100 * MIB
GIVEN_BACK_FIRST = [(1, 60, 0), (1, -60, 0), (2, 70, 0), (3, 15, 0), (4, 30, 0)]
"""Storage, MiB that it grows by, stream. The first one's segment goes back to make room for the second."""
BETTER_WITH_ROOM = [(1, 20, 0), (1, -20, 0), (2, 90, 0), (2, -90, 0), (3, 20, 0), (4, 75, 1)]
"""Where the first segment went back, the third storage pins the second one, which the fourth cannot have."""


def rows(events: list[tuple[int, int, int]], *room_bytes: int) -> Any:
    """After all events; the last room stays."""
    from zerobench.rank.worlds.simulation.allocator import SimulatedRows

    waiting = [(SimpleNamespace(serial=serial, birth=None), size * MIB, stream) for serial, size, stream in events]
    counter: Any = SimpleNamespace(take_device_events=lambda: [waiting.pop(0) for _ in list(waiting)])
    rooms = list(room_bytes)
    found = SimulatedRows(counter, lambda: rooms.pop(0) if rooms[1:] else rooms[0])
    found.note(StepKind.FIRST, Phase.FORWARD)
    return found.rows[StepKind.FIRST, Phase.FORWARD]


@pytest.mark.parametrize(("events", "needed"), [(GIVEN_BACK_FIRST, 130), (BETTER_WITH_ROOM, 166)])
def test_what_does_not_fit_needs_what_a_gpu_with_room_holds_and_no_less_than_was_refused(events, needed):
    assert rows(events, CAPACITY).held_bytes == needed * MIB


@pytest.mark.parametrize("events", [GIVEN_BACK_FIRST, BETTER_WITH_ROOM])
def test_what_fits_is_told_by_the_gpus_own_allocator(events):
    """Also where segments had to be given back for it."""
    fitting = rows(events[:3], CAPACITY)
    assert (fitting.alloc_retries, fitting.held_bytes) == (1, events[2][1] * MIB)


def test_a_communicator_that_is_made_later_takes_of_the_room():
    """86 MiB (torch asks for 15 as 16) fit into a hundred, and no longer once twenty of them are a communicator's."""
    events = GIVEN_BACK_FIRST[:4]
    assert rows(events, CAPACITY).held_bytes == 86 * MIB
    assert rows(events, CAPACITY, CAPACITY - 20 * MIB).held_bytes == 130 * MIB


def simulated(events: list[tuple[int, int, int]], capacity_bytes: int = CAPACITY) -> Any:
    """The world's allocators, which hear of each event (storage, bytes that it grows by, stream) as it is asked for."""
    from zerobench.rank.worlds.simulation.allocator import SimulatedRows

    counter: Any = SimpleNamespace(take_device_events=lambda: [_event(*events.pop(0)) for _ in list(events)])
    return SimulatedRows(counter, lambda: capacity_bytes)


def _event(serial: int, delta: int, stream: int) -> tuple[Any, int, int]:
    return SimpleNamespace(serial=serial, birth=None), delta, stream


def totals(found: Any) -> tuple[int, int, int, int]:
    said = found.totals()
    return said.live_bytes, said.peak_bytes, said.live_rounding_bytes, said.peak_rounding_bytes


def test_what_blocks_are_larger_than_was_asked_for_is_told_of_the_end_and_of_the_peak():
    """Blocks are multiples of 512 bytes: 1000 take 1024, 100 take 512, and at the peak both were there."""
    events: list[tuple[int, int, int]] = []
    found = simulated(events)
    assert totals(found) == (0, 0, 0, 0)
    events += [(1, 1000, 0), (2, 100, 0)]
    assert totals(found) == (1536, 1536, 436, 436)
    events += [(1, -1000, 0)]
    assert totals(found) == (512, 1536, 412, 436)
    found.start()
    assert totals(found) == (512, 512, 412, 412)


def test_a_storage_that_changes_its_size_is_given_back_and_asked_for_anew():
    events = [(1, 1000, 0), (1, 2000, 0)]
    found = simulated(events)
    assert totals(found) == (3072, 3072, 72, 72)
    events += [(1, -2500, 0)]
    assert totals(found) == (512, 3072, 12, 72)
    events += [(1, -500, 0), (9, 0, 0)]
    assert totals(found)[0] == 0


def test_free_segments_go_back_when_the_cache_is_emptied_and_what_is_held_stays():
    def reserved(found: Any) -> int:
        found.start()
        found.note(StepKind.STEADY, Phase.STEP)
        return int(found.rows[StepKind.STEADY, Phase.STEP].reserved_bytes)

    found = simulated([(1, 40 * MIB, 0), (2, 30 * MIB, 0), (1, -40 * MIB, 0)])
    assert reserved(found) == 70 * MIB
    found.empty_cache()
    assert reserved(found) == 30 * MIB


@pytest.mark.parametrize(("asked", "refused"), [(100, False), (102, True)])
def test_what_fills_the_gpu_to_the_last_segment_fits(asked, refused):
    """Beyond 10 MiB segments are multiples of 2 MiB."""
    found = simulated([(1, asked * MIB, 0)])
    found.note(StepKind.FIRST, Phase.FORWARD)
    row = found.rows[StepKind.FIRST, Phase.FORWARD]
    assert (row.held_bytes, len(found._plays)) == (asked * MIB, 1 if refused else 2)
