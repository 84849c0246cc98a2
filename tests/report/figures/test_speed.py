"""Speed out of raw step times."""

import dataclasses
from collections.abc import Sequence

import pytest

from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, on_cpu, spec
from tests.tools.known import known
from zerobench.records.records import Failure, StepTime
from zerobench.report.explain.time import speed_difference, time_topic
from zerobench.report.figures.speed import nvme_bytes_per_s, slowest_steps, speed_of, step_seconds_by_rank


def step(seconds: float, forward: float) -> StepTime:
    """A step that is forward, twice as much backward, and the rest."""
    return StepTime(step_s=seconds, forward_s=forward, backward_s=2 * forward, optimizer_s=seconds - 3 * forward)


def with_steps(trial: SampleTrial, *per_rank: Sequence[StepTime]) -> SampleTrial:
    """The trial with these step times, one list a rank."""
    return trial.with_ranks(step_times=lambda rank: list(per_rank[rank.rank]))


def two_ranks(**fields: object) -> SampleTrial:
    """A completed trial on two ranks."""
    return completed_trial(spec("zero1", gpus_per_node=2, **fields))


def test_the_slowest_rank_decides_each_step_and_lends_it_its_phases() -> None:
    fast, slow = step(1.0, 0.1), step(2.0, 0.5)
    trial = with_steps(two_ranks(), [fast, slow, fast], [slow, fast, fast])
    assert slowest_steps(trial) == [slow, slow, fast]
    speed = known(speed_of(trial))
    assert (speed.step_time_s_median, speed.forward_s, speed.backward_s, speed.step_s) == (2.0, 0.5, 1.0, 0.5)


def test_throughput_counts_the_sequences_of_all_ranks() -> None:
    steps = [step(0.5, 0.1)] * 3
    trial = with_steps(two_ranks(micro_batch_size=3, gradient_accumulation_steps=4), steps, steps)
    speed = known(speed_of(trial))
    assert speed.samples_per_s == pytest.approx(2 * 3 * 4 / 0.5)
    assert speed.tokens_per_s == pytest.approx(2 * 3 * 4 / 0.5 * 1024)


def test_mfu_is_the_flops_of_one_gpu_over_its_catalogued_peak() -> None:
    steps = [step(0.5, 0.1)] * 3
    trial = with_steps(two_ranks(), steps, steps)
    speed, flops = known(speed_of(trial)), known(trial.ranks[0].flops_per_step)
    assert speed.tflops_per_gpu == pytest.approx(flops / 0.5 / 1e12)
    assert speed.mfu == pytest.approx(flops / 0.5 / known(speed.peak_flops))


def test_mfu_is_none_where_no_peak_is_catalogued() -> None:
    speed = known(speed_of(on_cpu(two_ranks())))
    assert speed.mfu is None
    assert speed.tflops_per_gpu is not None


def test_an_allocator_that_retried_voids_the_throughput_and_says_so() -> None:
    speed = known(speed_of(completed_trial(spec("zero1", gpus_per_node=2), alloc_retries=2)))
    assert speed.void == "2 allocator retries"
    assert {speed.samples_per_s, speed.tokens_per_s, speed.tflops_per_gpu, speed.mfu} == {None}
    assert speed.step_time_s_median > 0


def test_one_rank_alone_of_many_has_no_global_throughput() -> None:
    solo = completed_trial(spec("zero1", gpus_per_node=8, evidence="solo"))
    speed = known(speed_of(dataclasses.replace(solo, ranks=solo.ranks[:1])))
    assert speed.tokens_per_s is None
    assert speed.tflops_per_gpu is not None


def test_a_trial_that_did_not_complete_has_no_speed() -> None:
    asked = spec("zero1", gpus_per_node=2)
    failed = failed_trial(asked, Failure(message="died in the last step"))
    assert speed_of(dataclasses.replace(failed, ranks=completed_trial(asked).ranks)) is None


def test_each_rank_keeps_its_own_step_time() -> None:
    seconds = step_seconds_by_rank(completed_trial(spec("zero1", gpus_per_node=4), step_s=1.0))
    assert seconds[3] == max(seconds.values())
    assert list(seconds) == [0, 1, 2, 3]


def test_nvme_speed_adds_the_ranks_and_takes_the_time_of_the_slowest() -> None:
    offload = {"offload_optimizer": "nvme", "nvme_path": "/nvme"}
    trial = completed_trial(spec("zero3", gpus_per_node=2, **offload))
    read, written = nvme_bytes_per_s(trial)
    assert read == pytest.approx(2 * 500e6 / 2.25)
    assert written == pytest.approx(2 * 250e6 / 2.25)


def test_nvme_speed_is_none_where_nothing_is_offloaded_there() -> None:
    assert nvme_bytes_per_s(two_ranks()) == (None, None)


def test_phases_that_nobody_can_tell_apart_have_no_time_and_the_step_still_has_one() -> None:
    whole = StepTime(step_s=2.0, forward_s=None, backward_s=None, optimizer_s=None)
    trial = with_steps(two_ranks(), [whole] * 3, [whole] * 3)
    speed = known(speed_of(trial))
    assert (speed.step_time_s_median, speed.forward_s, speed.backward_s, speed.step_s) == (2.0, None, None, None)
    assert "one graph, without separate phases" in " ".join(line.text for line in time_topic(trial).lines)
    with_phases = with_steps(two_ranks(), [step(1.0, 0.1)] * 3, [step(1.0, 0.1)] * 3)
    [said, *_] = speed_difference(with_phases, trial, ("one", "other"), ("one", "other")).lines
    assert "phases unknown in one of them" in said.text
