"""When a pipeline's passes end, by hand and by what every schedule must keep to."""

import random
from itertools import pairwise

import pytest

from zerobench.timing.pipeline import StageTimes, passes_s

SCHEDULES = pytest.mark.parametrize("gpipe", [False, True], ids=["1f1b", "gpipe"])


@SCHEDULES
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (4, 2), (4, 4), (4, 32), (7, 5)])
def test_equal_stages_are_idle_for_as_long_as_the_papers_say(gpipe: bool, stages: int, micro_batches: int) -> None:
    took = passes_s([StageTimes(1.0, 2.0, 0.0)] * stages, micro_batches, forward_first=gpipe)
    assert 1 - micro_batches * 3 / took == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_a_border_is_crossed_once_each_way_and_who_sends_waits_for_it() -> None:
    two = [StageTimes(1.0, 1.0, 0.5), StageTimes(1.0, 1.0, 0.0)]
    assert passes_s(two, 1, forward_first=False) == 1 + 0.5 + 1 + 1 + 0.5 + 1
    assert passes_s(two, 2, forward_first=True) == 2 * 1.5 + 1 + 2 * 1.5 + 1


def test_the_slowest_stage_sets_the_pace() -> None:
    uneven = [StageTimes(1.0, 2.0, 0.0), StageTimes(2.0, 4.0, 0.0), StageTimes(1.0, 2.0, 0.0)]
    more, most = (passes_s(uneven, count, forward_first=False) for count in (100, 101))
    assert most - more == pytest.approx(6.0)


@SCHEDULES
@pytest.mark.parametrize("seed", range(10))
def test_no_schedule_is_better_than_its_stages_nor_worse_for_more_micro_batches_or_faster_links(
    gpipe: bool, seed: int
) -> None:
    drawn = random.Random(seed)  # noqa: S311 -- the same stages each time
    stages = [StageTimes(*(drawn.uniform(0.1, 2.0) for _ in range(3))) for _ in range(drawn.randrange(2, 7))]
    stages[-1] = stages[-1]._replace(border_s=0.0)
    fast = [one._replace(border_s=one.border_s / 2) for one in stages]
    times = [passes_s(stages, count, forward_first=gpipe) for count in (1, 2, 4, 8, 16)]
    for count, took in zip((1, 2, 4, 8, 16), times, strict=True):
        assert took >= max(count * (one.forward_s + one.backward_s) for one in stages)
        assert took >= sum(one.forward_s + one.backward_s + 2 * one.border_s for one in stages)
        assert passes_s(fast, count, forward_first=gpipe) <= took + 1e-9
    assert all(two <= 2 * one + 1e-9 for one, two in pairwise(times))
