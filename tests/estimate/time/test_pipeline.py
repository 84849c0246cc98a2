"""When a pipeline's passes end, by hand and by what every schedule must keep to."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.report.predicted_trial import asked, trial
from tests.tools.known import known
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.links import Links
from zerobench.config.trial.recomputation import recomputed_blocks
from zerobench.estimate.clock.rates import kind_rates
from zerobench.estimate.clock.replay import Span, Timeline
from zerobench.estimate.time.passes import Passes, decoder_of
from zerobench.estimate.time.pipeline import StageTimes, passes_s
from zerobench.estimate.time.stages import divided, piped
from zerobench.estimate.time.terms import Work

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


def test_borders_within_a_node_and_between_nodes_take_what_their_links_take() -> None:
    """Four stages of 4, 8, 8 and 4 blocks on two nodes; the last has the head."""
    spec = asked("pipeline", gpus_per_node=2, num_nodes=2, micro_batch_size=3)
    links, gpu = Links(link_gb_per_s=100, network_gb_per_s=10), known(find_gpu("h100"))
    work = Work(trial(spec).ranks[0], spec, gpu, links, None)
    rest = known(decoder_of(spec.model)), kind_rates("h100"), None
    link_s, network_s = 6 * 2**20 / 100e9 + 8.4e-6 + 3.4e-6, 6 * 2**20 / 10e9 + 8.4e-6 + 14e-6
    slower, sizes, most = kind_rates("h100").slower(4), divided(spec)[1], 4 * 2.4
    times = (0.4, 0.8), (0.8, 1.6), (0.8, 1.6), (0.4 + 0.1, 0.8 + 0.2)
    still, whole = (
        passes_s(
            [StageTimes(*time, border / slower) for time, border in zip(times, at, strict=True)], 4, forward_first=False
        )
        for at in ((0, 0, 0, 0), (link_s, network_s, link_s, 0))
    )
    found = slower * most, slower * (whole - still), slower * (still - most), max(sizes) / sizes[0]
    assert piped(work, _alike, *rest) == pytest.approx(found, rel=1e-9)
    assert piped(replace(work, links=Links(link_gb_per_s=100)), _alike, *rest) is None


def _alike(_: range) -> Passes:
    """Of a stage, whichever blocks it has."""
    return Passes(0.1, 0.2, 24, 0.3)


def test_a_stage_computes_again_the_blocks_that_it_has_and_its_head_is_not_what_blocks_are_off_by() -> None:
    """Every third of 24 blocks in four stages: two of the first one's four, one of the last one's."""
    spec = asked("pipeline", gpus_per_node=4, activation_checkpointing="every-3", micro_batch_size=3)
    asked_for: list[range] = []

    def computing(blocks: range) -> Passes:
        asked_for.append(blocks)
        return Passes(0.1, 0.2 + 0.1 * recomputed_blocks("every-3", blocks) / len(blocks), 24, 30.0)

    work = Work(trial(spec).ranks[0], spec, known(find_gpu("h100")), Links(link_gb_per_s=100), None)
    rest = known(decoder_of(spec.model)), kind_rates("h100")
    division, slower = divided(spec)[0], kind_rates("h100").slower(4)
    blocks_s = [0.3 * len(blocks) + 0.1 * recomputed_blocks("every-3", blocks) for blocks in division]
    found = known(piped(work, computing, *rest, None))
    assert found.compute_s == pytest.approx(4 * slower * (blocks_s[-1] + 30), rel=1e-6)
    assert set(asked_for) == set(division)
    twice = Timeline((Span("compute", "products", "forward", 0.0, 4 * 2 * slower * blocks_s[0]),), {}, 1.0, 1.0)
    longer = known(piped(work, computing, *rest, twice))
    assert longer.compute_s == pytest.approx(4 * slower * (2 * blocks_s[-1] + 30), rel=1e-6)
