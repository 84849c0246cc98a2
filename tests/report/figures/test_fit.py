"""Whether a trial fits, to the byte: with room, tightly, or not, and which memory lacks."""

import pytest

from zerobench.report.figures.fit import Fit, Space


def space(needed: int | None, capacity: int | None = 100, *, refused: bool = False) -> Space:
    return Space(needed, capacity, refused)


@pytest.mark.parametrize(("one", "room", "fits", "has_room"), [
    (space(0), 1.0, True, True),
    (space(94), 0.06, True, True),
    (space(95), 0.05, True, True),
    (space(96), 0.04, True, False),
    (space(100), 0.0, True, False),
    (space(101), -0.01, False, False),
    (space(60, refused=True), 0.0, False, False),
    (space(150, refused=True), -0.5, False, False),
    (space(None), None, True, True),
    (space(None, refused=True), None, False, True),
    (space(50, None), None, True, True),
    (space(50, 0), None, True, True),
])  # fmt: skip
def test_a_memory_has_room_that_leaves_a_twentieth_free_and_fits_to_the_last_byte(
    one: Space, room: float | None, fits: bool, has_room: bool
) -> None:
    """An allocator that gave up had no room, whatever was free; what is not known is not held against it."""
    assert one.room == (None if room is None else pytest.approx(room))
    assert (one.fits, one.has_room) == (fits, has_room)


@pytest.mark.parametrize(("device", "host", "needs_host", "verdict"), [
    (space(50), space(50), True, "yes"),
    (space(97), space(50), True, "tight"),
    (space(50), space(97), True, "tight"),
    (space(101), space(50), True, "no: device"),
    (space(50), space(101), True, "no: host"),
    (space(101), space(101), True, "no"),
    (space(50), space(50, None), True, "not checked"),
    (space(50), space(50, None), False, "yes"),
    (space(101), space(50, None), True, "no: device"),
    (space(97), space(50, None), False, "tight"),
    (space(None), space(50), True, ""),
    (space(50, None), space(101), True, ""),
    (space(50, refused=True), space(50), False, "no: device"),
])  # fmt: skip
def test_the_verdict_names_the_memory_that_lacks(device: Space, host: Space, needs_host: bool, verdict: str) -> None:
    assert Fit(device, host, needs_host).verdict == verdict


def test_a_trial_fits_where_both_memories_hold_it_and_its_need_is_known() -> None:
    fine, tight, lacking, unknown = space(50), space(97), space(101), space(None)
    assert [Fit(fine, one, True).fits for one in (fine, tight, lacking, unknown)] == [True, True, False, True]
    assert [Fit(one, fine, True).fits for one in (fine, tight, lacking, unknown)] == [True, True, False, False]
    assert [Fit(fine, one, True).has_room for one in (fine, tight, lacking, unknown)] == [True, False, False, True]
    assert [Fit(one, fine, True).has_room for one in (fine, tight, lacking, unknown)] == [True, False, False, False]
    assert [Fit(one, fine, True).is_known for one in (fine, unknown)] == [True, False]


def test_the_room_of_a_trial_is_that_of_the_scarcer_memory_that_is_known() -> None:
    assert Fit(space(50), space(90), True).room == pytest.approx(0.1)
    assert Fit(space(90), space(50), True).room == pytest.approx(0.1)
    assert Fit(space(50), space(None), True).room == 0.5
    assert Fit(space(None), space(None), True).room == -1.0  # it is never the nearest to fitting
