"""What CPU ranks are judged by: a run of one rank says the rates, and gloo's algorithm what a collective copies."""

from __future__ import annotations

import pytest

from benchmarks.timing import cpu_ranks
from benchmarks.timing.cpu_ranks import calibrated, moved_by_call, one_at_a_time
from zerobench.timing.replay import replay
from zerobench.timing.trace import Awaited, Begins, Call, Item, Kernels, StepTrace, Work

PASSES = Work((((64, 32, 16), 3),), (2000, 4000), 10_000, 5)
UPDATE = Work((), (0, 0), 40_000, 2)


def step(*between: Call) -> StepTrace:
    items: tuple[Item, ...] = (Begins("forward"), Kernels(0, 0), *between, Begins("step"), Kernels(0, 1))
    return StepTrace((PASSES, UPDATE), items)


def test_a_run_of_one_rank_is_replayed_at_its_own_times():
    timeline = replay(step(), calibrated(step(), 0.5, 0.1))
    assert timeline is not None
    assert [timeline.passes_s, timeline.step_s] == pytest.approx([0.5, 0.6])


def test_a_product_takes_longer_by_its_flops_alone_and_an_update_by_its_bytes():
    pace = calibrated(step(), 0.5, 0.1)
    launches = 2 * cpu_ranks._LAUNCH_S
    assert sum(pace.work_s("step", UPDATE._replace(moved_bytes=80_000)).values()) == pytest.approx(0.2 - launches)
    twice = PASSES._replace(products=(((64, 32, 16), 6),), attention=(4000, 8000))
    assert pace.work_s("forward", twice)["products"] == pytest.approx(2 * pace.work_s("forward", PASSES)["products"])


@pytest.mark.parametrize(
    ("kind", "moved_bytes"),
    [
        # Two ranks, 100 bytes: what is sent and what comes is read and written once each, sums read two and write one.
        ("all_reduce", 2 * (100 + 100) + 3 * 50),
        ("reduce_scatter", 2 * (100 + 100) + 3 * 50 + 2 * 100 + 2 * 50),
        ("all_gather", 2 * (50 + 50) + 2 * 100 + 2 * 50),
        ("broadcast", 2 * (50 + 50)),
        ("barrier", 0),
    ],
)
def test_a_collective_copies_and_adds_what_gloo_does(kind, moved_bytes):
    assert moved_by_call(kind, 2, 100) == moved_bytes


def test_nothing_is_copied_by_a_rank_alone():
    assert moved_by_call("reduce_scatter", 1, 100) == 0


def test_who_computes_passes_nothing_on_meanwhile():
    """Two collectives and then an update: one after another, where a GPU's links would go on beside it."""
    trace = step(*[Call(0, "all_reduce", 2, 1, 1000)] * 2)
    pace = calibrated(step(), 0.5, 0.1)
    serial = one_at_a_time(trace)
    assert [item.call for item in serial.items if isinstance(item, Awaited)] == [0, 1]
    beside, after = replay(trace, pace), replay(serial, pace)
    assert beside is not None
    assert after is not None
    call_s = pace.call_s(Call(0, "all_reduce", 2, 1, 1000))
    assert after.step_s == pytest.approx(0.6 + 2 * call_s)
    assert beside.step_s == pytest.approx(max(0.6, 0.5 + 2 * call_s))
