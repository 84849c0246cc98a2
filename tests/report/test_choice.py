"""Which configuration to take, and the sentence that says why."""

from dataclasses import replace

import pytest

from tests.tools.known import known
from zerobench.report.choice import Choice, Option, choose
from zerobench.spec.trial import Offload
from zerobench.timing.step import Interval

ON_GPU = Option(2, Offload.NONE, Offload.NONE, room=0.2)
ON_HOST = Option(2, Offload.CPU, Offload.NONE, room=0.5, host_unchecked=True)


def reason(*options: Option) -> str:
    choice = known(choose(options, lambda option: option))
    return choice.reason


def timed(option: Option, seconds: float) -> Option:
    return Option(
        option.zero_stage,
        option.offload_optimizer,
        option.offload_param,
        option.room,
        Interval(seconds, 0.9 * seconds, 1.1 * seconds),
        host_unchecked=option.host_unchecked,
    )


def test_what_is_not_checked_on_the_host_is_counted_apart() -> None:
    rest = "; chosen: least offload, lowest stage; step times unknown, measure them"
    assert reason(ON_GPU, ON_GPU) == f"2 fit with 5% room{rest}"
    assert reason(ON_GPU, ON_HOST, ON_HOST) == f"3 fit with 5% room (host memory not checked for 2){rest}"
    fastest = "expected to be the fastest of 2 that fit with 5% room (host memory not checked for 1)"
    assert reason(timed(ON_GPU, 1.0), timed(ON_HOST, 2.0)) == fastest


@pytest.mark.parametrize(("only", "beside"), [(ON_GPU, ""), (ON_HOST, " (host memory not checked)")])
def test_the_only_one_that_fits_says_whether_its_host_was_checked(only: Option, beside: str) -> None:
    too_large = Option(0, Offload.NONE, Offload.NONE, room=-0.5)
    assert reason(only, too_large) == f"the only one that fits with room{beside}"


def test_nothing_is_taken_where_nothing_fits_with_room() -> None:
    found: Choice[Option] | None = choose([Option(3, Offload.CPU, Offload.CPU, room=0.04)], lambda option: option)
    assert found is None


def test_of_steps_as_long_the_one_with_more_tokens_is_the_faster() -> None:
    few, many = (replace(timed(ON_GPU, 1.0), tokens_per_gpu=tokens) for tokens in (1024, 4096))
    for within in (None, 0.03):
        choice = known(choose([few, many], lambda option: option, within))
        assert choice.best is many
        assert choice.num_tied == 1


def test_of_those_that_are_as_fast_the_fewest_gpus_are_taken_and_not_the_most_room() -> None:
    few = replace(timed(ON_GPU, 1.0), num_gpus=8, tokens_per_gpu=1024)
    many = replace(few, num_gpus=64, room=0.9, zero_stage=1)
    choice = known(choose([many, few], lambda option: option))
    assert choice.best is few
    assert choice.reason == "2 fit with 5% room, all about as fast; chosen: least offload, fewest GPUs, lowest stage"
    again = [replace(few, recomputed=1.0, zero_stage=1), few]
    choice = known(choose(again, lambda option: option))
    assert choice.best is few
    assert (
        choice.reason
        == "2 fit with 5% room, all about as fast; chosen: least offload, least checkpointing, lowest stage"
    )
    offloaded = replace(timed(ON_HOST, 1.0), num_gpus=4, tokens_per_gpu=1024)
    choice = known(choose([many, few, offloaded], lambda option: option))
    assert choice.best is few


def test_of_torchs_strategies_that_are_as_fast_the_one_is_taken_that_partitions_least() -> None:
    whole = replace(timed(ON_GPU, 1.0), zero_stage=None, paper_stage=0)
    divided = replace(whole, paper_stage=3, room=0.9)
    assert known(choose([divided, whole], lambda option: option)).best is whole
    at_stage_3 = replace(divided, zero_stage=3)
    assert known(choose([whole, at_stage_3], lambda option: option)).best is at_stage_3
