"""The table of a measured frontier: predicted and measured side by side, and what ended each search."""

import pytest
from rich.console import Console

from tests.report.sample_run import GIB, MIB, SampleTrial, completed_trial, failed_trial, on_cpu, skipped_trial, spec
from tests.tools.known import known
from zerobench.common.vocabulary import Status
from zerobench.config.derived.frontier import Frontier, Try
from zerobench.config.derived.frontier_axes import frontier_axis
from zerobench.config.trial.trial import Evidence
from zerobench.records.instants import device_peak_bytes
from zerobench.records.records import Failure
from zerobench.report.documents.terminal import print_parts
from zerobench.report.figures.run.run_frontier import Limit, RunFrontierRow, ends, ran_out
from zerobench.report.tables.run_frontier import run_frontier_table

FULL = Failure(message="the device ran out of memory")
GPU = Limit(80 * GIB, is_given=False)
GIVEN = Limit(10 * GIB, is_given=True)

TABLE = """\
Measured: largest micro batch that fits, in sequences per GPU
Fits: the trial completes on NVIDIA H100 80GB HBM3 of 80.00 GiB; each try is a trial in fresh
processes. predicted: start of the search. too large: smallest seen not to fit. needs: tensors, CUDA
context and NCCL of the largest, GiB. ends: the memory that `too large` exceeds; limit: end of the
search range. tokens/s: of the largest.
trial          predicted  measured  error  too large  needs  room, %  tokens/s  tries  ends
────────────────────────────────────────────────────────────────────────────────────────────────────
zero1                 30        32  -6.2%         33  75.00      6.2   247,306      5  device memory
zero2                  -     1,200      -          -  40.00     50.0   247,306      2  limit
zero3                 30      none      -          1      -        -         -      3  device memory
zero3 opt=cpu         30         -      -          -      -        -         -      -  given up
"""


def found(largest: Try | None, too_large: Try | None, tries: int = 2) -> Frontier:
    return Frontier(largest, too_large, tuple(Try(value, None) for value in range(tries)))


def rows() -> list[RunFrontierRow]:
    fits, full = completed_trial(spec("zero2")), failed_trial(spec("zero2", micro_batch_size=64), FULL)
    predicted = found(Try(30, 79 * GIB), Try(31, 81 * GIB))
    measured = found(Try(32, 75 * GIB), Try(33, None), 5)
    return [
        RunFrontierRow("zero1", predicted, measured, fits, full),
        RunFrontierRow("zero2", None, found(Try(1200, 40 * GIB), None), fits, None),
        RunFrontierRow("zero3", predicted, found(None, Try(1, None), 3), None, full),
        RunFrontierRow("zero3 opt=cpu", predicted, None, None, None),
    ]


def shown(axis: str, limit: Limit, device: str | None, width: int) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        print_parts([run_frontier_table(frontier_axis(axis), rows(), limit, device, width)], console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def test_predicted_and_measured_stand_side_by_side() -> None:
    assert shown("micro-batch", GPU, "NVIDIA H100 80GB HBM3", 100) == TABLE


def test_along_the_model_the_table_has_its_parameters() -> None:
    lines = shown("model", GPU, "NVIDIA H100 80GB HBM3", 110).splitlines()
    assert lines[0] == "Measured: largest model that fits, in layers"
    [row] = [line.split() for line in lines if line.startswith("zero1")]
    assert row[:6] == ["zero1", "30", "32", "-6.2%", "355", "M"]


def test_how_fast_the_largest_trains_stands_beside_it_and_of_a_rank_alone_only_what_it_computes() -> None:
    headers = shown("micro-batch", GPU, "NVIDIA H200", 140).splitlines()[4].split("  ")
    assert [one.strip() for one in headers if "/s" in one] == ["tokens/s", "TFLOP/s"]
    trial = completed_trial(spec("zero2"))
    alone = trial.spec.model_copy(update={"evidence": Evidence.SOLO})
    solo = RunFrontierRow("", None, None, SampleTrial(alone, trial.record, trial.ranks[:1]), None)
    assert solo.speed is not None
    assert solo.speed.tokens_per_s is None
    assert solo.speed.tflops_per_gpu is not None


def test_on_a_cpu_ranks_have_sequences_and_the_capacity_is_named() -> None:
    text = " ".join(shown("micro-batch", GIVEN, None, 100).split())
    assert "in sequences per rank" in text
    assert "peak tensor memory per rank at most 10.00 GiB of its device (the CPU)" in text


def test_what_ended_a_search_is_named() -> None:
    first, unlimited, nothing, given_up = rows()
    assert [ends(row) for row in (first, unlimited, nothing, given_up)] == [
        "device memory",
        "limit",
        "device memory",
        "given up",
    ]
    beyond = RunFrontierRow("", None, first.measured, None, completed_trial(spec("zero2")))
    assert ends(beyond) == "capacity"
    host = failed_trial(spec("zero2"), FULL, Status.OUT_OF_HOST_MEMORY)
    assert ends(RunFrontierRow("", None, first.measured, None, host)) == "host memory"
    refused = skipped_trial(spec("zero2"), "host_memory")
    assert ends(RunFrontierRow("", None, first.measured, None, refused)) == "host memory"


def test_only_memory_ends_a_search() -> None:
    assert ran_out(failed_trial(spec("zero2"), FULL))
    assert ran_out(failed_trial(spec("zero2"), FULL, Status.OUT_OF_HOST_MEMORY))
    assert ran_out(skipped_trial(spec("zero2"), "host_memory"))
    assert not ran_out(skipped_trial(spec("zero2"), "ranks_exceed_gpus"))
    assert not ran_out(failed_trial(spec("zero2"), FULL, Status.TIMEOUT))
    assert not ran_out(completed_trial(spec("zero2")))


def test_against_a_whole_gpu_context_and_nccl_count_and_against_a_given_capacity_tensors_alone() -> None:
    trial = completed_trial(spec("zero2"))
    peak_bytes = known(device_peak_bytes(trial))
    assert GIVEN.needed_bytes(trial) == peak_bytes
    assert GPU.needed_bytes(trial) == peak_bytes + (514 + 320) * MIB
    assert GIVEN.needed_bytes(on_cpu(trial)) == peak_bytes


def test_a_trial_that_completed_never_needed_more_than_the_gpu_has_and_a_predicted_one_may() -> None:
    trial = completed_trial(spec("zero2"))
    small = Limit(GIB, is_given=False)
    assert small.needed_bytes(trial) == GIB
    asked = trial.spec.model_copy(update={"evidence": Evidence.SIMULATED})
    predicted = known(small.needed_bytes(SampleTrial(asked, trial.record, trial.ranks)))
    assert predicted > GIB


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("axis", ["model", "micro-batch", "sequence-length"])
def test_no_figure_is_broken_on_a_terminal(axis: str, width: int) -> None:
    lines = shown(axis, GPU, "NVIDIA H100 80GB HBM3", width).splitlines()
    assert max(map(len, lines)) <= width
    [row] = [line for line in lines if line.startswith("zero1")]
    assert row.endswith("device memory")
    figures = ["3,840", "4,096"] if axis == "sequence-length" else ["30", "32"]
    assert row.split()[1:3] == figures


@pytest.mark.parametrize("limit", [GPU, GIVEN])
def test_where_nobody_watched_nothing_is_said(limit: Limit) -> None:
    assert limit.needed_bytes(failed_trial(spec("zero2"), FULL)) is None
