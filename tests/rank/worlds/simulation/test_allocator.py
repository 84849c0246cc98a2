"""What the simulated world says is needed where its GPU's allocator refuses: no guess from what was left then."""

from types import SimpleNamespace
from typing import Any

import pytest

from zerobench.common.vocabulary import Phase, StepKind

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
