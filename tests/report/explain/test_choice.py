"""Which configuration to take, and the sentence that says why."""

from dataclasses import replace
from typing import Any

import pytest

from tests.report.sample_run import skipped_trial, spec
from tests.tools.known import known
from zerobench.estimate.clock.step import expected
from zerobench.report.explain.choice import choose, decide
from zerobench.report.figures.fit import Fit, Space
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.trial import TrialFigures

GPU_BYTES = 1000


def option(strategy: str, room: float, **fields: Any) -> TrialFigures:
    """A predicted configuration that leaves this share of a GPU; the host's memory is not known."""
    figures = trial_figures(skipped_trial(spec(strategy, evidence="simulated", **fields), "a_rule"))
    device = Space(round((1 - room) * GPU_BYTES), GPU_BYTES)
    return replace(figures, fit=Fit(device, Space(None, None), needs_host=figures.offloads()))


ON_GPU = option("zero2", room=0.2)
ON_HOST = option("zero2", room=0.5, offload_optimizer="cpu")


def with_room(one: TrialFigures, room: float) -> TrialFigures:
    return replace(one, fit=replace(one.fit, device=Space(round((1 - room) * GPU_BYTES), GPU_BYTES)))


def reason(*options: TrialFigures) -> str:
    choice = known(choose(options))
    return choice.reason


def timed(one: TrialFigures, seconds: float) -> TrialFigures:
    return replace(one, expected=expected((seconds, 0.0, 0.0), 0.05, {}))


def of(one: TrialFigures, **fields: Any) -> TrialFigures:
    """`one` with other `fields` of its trial."""
    return replace(one, spec=one.spec.model_copy(update=fields))


def test_what_is_not_checked_on_the_host_is_counted_apart() -> None:
    rest = "; chosen: least offload, lowest stage; step times unknown, measure them"
    assert reason(ON_GPU, ON_GPU) == f"2 fit with 5% room{rest}"
    assert reason(ON_GPU, ON_HOST, ON_HOST) == f"3 fit with 5% room (host memory not checked for 2){rest}"
    fastest = "expected to be the fastest of 2 that fit with 5% room (host memory not checked for 1)"
    assert reason(timed(ON_GPU, 1.0), timed(ON_HOST, 2.0)) == fastest


@pytest.mark.parametrize(("only", "beside"), [(ON_GPU, ""), (ON_HOST, " (host memory not checked)")])
def test_the_only_one_that_fits_says_whether_its_host_was_checked(only: TrialFigures, beside: str) -> None:
    too_large = option("zero0", room=-0.5)
    assert reason(only, too_large) == f"the only one that fits with room{beside}"


def test_nothing_is_taken_where_nothing_fits_with_room() -> None:
    found = choose([option("zero3", room=0.04, offload_optimizer="cpu", offload_param="cpu")])
    assert found is None


def test_of_steps_as_long_the_one_with_more_tokens_is_the_faster() -> None:
    few, many = (of(timed(ON_GPU, 1.0), sequence_length=tokens) for tokens in (1024, 4096))
    choice = known(choose([few, many]))
    assert choice.best is many
    assert choice.num_tied == 1


@pytest.mark.parametrize(("longer_s", "takes_the_simpler"), [(0.009, True), (0.011, False)])
def test_a_gain_below_one_per_cent_is_none_and_a_larger_one_counts_however_uncertain(
    longer_s: float, *, takes_the_simpler: bool
) -> None:
    simple = timed(of(ON_GPU, strategy="zero1"), 1.0 + longer_s)
    fast = timed(of(ON_GPU, strategy="zero3"), 1.0)
    choice = known(decide([fast, simple]))
    taken, left = (simple, fast) if takes_the_simpler else (fast, simple)
    assert (choice.best, choice.runner_up) == (taken, left)


def test_the_runner_up_is_the_simplest_of_those_that_may_be_as_fast() -> None:
    best = timed(of(ON_HOST, strategy="zero3"), 1.0)
    near, simple = timed(of(ON_HOST, strategy="zero3"), 1.03), timed(of(ON_GPU, strategy="zero2"), 1.06)
    assert known(decide([near, simple, best])).best is best
    assert known(decide([near, simple, best])).runner_up is simple
    surely_slower = timed(simple, 1.5)
    assert known(decide([near, surely_slower, best])).runner_up is near


def test_without_one_that_may_be_as_fast_the_runner_up_is_the_next_fastest() -> None:
    first, second, third = (timed(of(ON_GPU, strategy=f"zero{stage}"), 2.0**stage) for stage in (1, 2, 3))
    assert known(decide([third, second, first])).runner_up is second
    assert known(decide([first])).runner_up is None
    no_room = with_room(second, 0.01)
    assert known(decide([first, no_room])).runner_up is None


def test_of_those_that_are_as_fast_the_fewest_gpus_are_taken_and_not_the_most_room() -> None:
    few = of(timed(ON_GPU, 1.0), gpus_per_node=8)
    many = with_room(of(few, gpus_per_node=64, strategy="zero1"), 0.9)
    choice = known(choose([many, few]))
    assert choice.best is few
    assert choice.reason == "2 fit with 5% room, all about as fast; chosen: least offload, fewest GPUs, lowest stage"
    again = [of(few, activation_checkpointing=True, strategy="zero1"), few]
    choice = known(choose(again))
    assert choice.best is few
    assert (
        choice.reason
        == "2 fit with 5% room, all about as fast; chosen: least offload, least checkpointing, lowest stage"
    )
    offloaded = of(timed(ON_HOST, 1.0), gpus_per_node=4)
    choice = known(choose([many, few, offloaded]))
    assert choice.best is few


def test_of_torchs_strategies_that_are_as_fast_the_one_is_taken_that_partitions_least() -> None:
    whole = of(timed(ON_GPU, 1.0), strategy="ddp")
    divided = with_room(of(whole, strategy="fsdp"), 0.9)
    assert known(choose([divided, whole])).best is whole
    at_stage_3 = of(divided, strategy="zero3")
    assert known(choose([whole, at_stage_3])).best is at_stage_3


def test_of_those_as_simple_and_as_fast_the_one_with_most_room_is_taken_by_the_room_that_is_believed() -> None:
    tight, roomy = with_room(ON_GPU, 0.1), with_room(ON_GPU, 0.3)
    assert known(choose([tight, roomy])).best is roomy
    assert known(choose([tight, roomy], lambda row: 0.5 - row.room)).best is tight
    best, near, nearer = timed(with_room(ON_GPU, 0.1), 1.0), timed(tight, 1.02), timed(roomy, 1.03)
    assert known(decide([best, near, nearer])).runner_up is nearer
