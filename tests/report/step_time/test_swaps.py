"""How long an update takes that swaps: by hand, of one sub-group and of several, in turns and ahead."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.report.predicted_trial import asked
from tests.report.predicted_trial import trial as made
from tests.report.sample_run import SampleTrial
from tests.timing.predicted_trials import expected, gpu, links, predicted
from tests.tools.known import known
from zerobench.records import NvmeTraffic, Phase, StepKind
from zerobench.report.step_time.expected import timed_work
from zerobench.report.step_time.swaps import Pass, swapping_s
from zerobench.report.step_time.terms import Work
from zerobench.report.trials import case_of
from zerobench.spec.tensors import parameter_tensors

DRIVES: dict[str, Any] = {"offload_optimizer": "nvme", "optimizer": "cpu_adam", "nvme_path": "/nvme"}
SMALL = {"zero_optimization.sub_group_size": 100_000_000}
SHARE = 0.8
"""Of the drives' rate that is reached."""


def swapped(**keys: bool) -> SampleTrial:
    ahead = {f"zero_optimization.offload_optimizer.pipeline_{name}": value for name, value in keys.items()}
    return predicted(strategy="zero3", **DRIVES, ds_config={**SMALL, **ahead})


def drives_s(trial: SampleTrial) -> tuple[float, float]:
    rows = [row for row in trial.ranks[0].nvme if row.step is StepKind.STEADY and row.phase is Phase.STEP]
    rate = SHARE * 1e9 * (links().nvme_gb_per_s or 0)
    moved = sum(row.read_bytes for row in rows), sum(row.written_bytes for row in rows)
    return tuple(8 * nbytes / rate for nbytes in moved)  # type: ignore[return-value] # two of them


def update_s(trial: SampleTrial) -> float:
    return expected(trial).update_s


def test_without_pipelining_reads_and_writes_wait_for_each_other_however_many_sub_groups_there_are() -> None:
    whole = predicted(strategy="zero3", **DRIVES)
    assert sum(drives_s(whole)) > 1
    endless = links().model_copy(update={"nvme_gb_per_s": 1e12})
    without_drives = expected(whole, at=endless).update_s
    for trial in (whole, swapped()):
        assert update_s(trial) == pytest.approx(without_drives + sum(drives_s(trial)), rel=1e-3)
    assert expected(swapped()).step_s == pytest.approx(expected(whole).step_s, rel=1e-3), "some were written before"


@pytest.mark.parametrize(("block", "before_copies"), [(2**24, 4096), (2**40, 0)])
def test_a_copy_waits_for_the_gathers_before_it_unless_the_next_parameter_is_read(
    block: int, before_copies: int
) -> None:
    """Of Llama 7B the embedding and the head alone have a part of 16 MiB on each of 8 ranks, and before the head is a
    norm.
    """
    keys = {"aio.block_size": block, "zero_optimization.stage3_param_persistence_threshold": 0}
    trial = predicted(strategy="zero3", **DRIVES, offload_param="nvme", ds_config={"aio.block_size": 2**20})
    asked = predicted(strategy="zero3", **DRIVES, offload_param="nvme", ds_config=keys)
    work = known(timed_work(replace(asked, ranks=trial.ranks), gpu(), links())).work
    none, second = (known(swapping_s(work, [Pass(Phase.BACKWARD, 0.0, gathered)], 0, 0, 0))[0] for gathered in (0, 1))
    assert second - none == pytest.approx(1 - before_copies / sum(parameter_tensors(asked.spec.model)), abs=1e-9)


PASSES = [Pass(Phase.FORWARD, 3.0, 0.5, 1.0), Pass(Phase.BACKWARD, 8.0, 1.0, 6.0)]


@pytest.mark.parametrize(
    ("read_gb", "kept", "ahead", "added_s"),
    [
        ((0, 0, 7), 0, 1, 0.1),
        ((5, 10, 7), 10**9, 1, 1.8 + 3.6),  # nothing is gathered beside which it could be hidden
        ((5, 10, 7), 4_000_000, 1, 1.8 / 49 + 3.6 + 0.75 * 6 - 8),
        ((5, 10, 7), 4_000_000, 0, 1.8 / 49 + 3.6 + 6 - 8),
    ],
)
def test_passes_wait_for_drives_that_nothing_hides(
    read_gb: tuple[int, ...], kept: int, ahead: int, added_s: float
) -> None:
    """Drives of 40 GB/s that eight ranks share; copies take 0.9 s, as what is read is divided. None is read alone."""
    keys = {"stage3_param_persistence_threshold": kept, "stage3_prefetch_bucket_size": ahead}
    config = {"zero_optimization": keys, "aio.block_size": 2**40}
    spec = asked("zero3", **DRIVES, offload_param="nvme", ds_config=config)
    moved = zip((Phase.FORWARD, Phase.BACKWARD, Phase.STEP), read_gb, (1, 2, 5), strict=True)
    rows = [
        NvmeTraffic(step=StepKind.STEADY, phase=phase, read_bytes=read * 10**9, written_bytes=out * 10**9, seconds=1.0)
        for phase, read, out in moved
    ]
    sample = made(spec, nvme=rows)
    work = Work(sample.ranks[0], spec, gpu(), links(nvme_gb_per_s=40.0), case_of(sample))
    assert swapping_s(work, PASSES, 0.9, 0.1, 2.0) == pytest.approx((added_s + 0.2 + 0.4, 1.4 + 1.0))
    assert swapping_s(replace(work, links=links(nvme_gb_per_s=None)), PASSES, 0.9, 0.1, 2.0) is None
    assert swapping_s(replace(work, spec=asked()), PASSES, 0.9, 0.1, 2.0) == (0.1, 0.0)


@pytest.mark.parametrize("keys", [{"read": True}, {"write": True}, {"read": True, "write": True}])
def test_what_is_pipelined_goes_on_beside_all_other_sub_groups(keys: dict[str, bool]) -> None:
    trial = swapped(**keys)
    read_s, written_s = drives_s(trial)
    in_turns = update_s(swapped())
    endless = links().model_copy(update={"nvme_gb_per_s": 1e12, "host_memory_gb_per_s": 1e12})
    rest = expected(trial, at=endless).update_s
    host_s = in_turns - rest - read_s - written_s
    counts = trial.ranks[0].parameters
    assert counts is not None
    groups = math.ceil(counts.total / 8 / 100_000_000)
    assert groups > 5
    alone = host_s + (0 if keys.get("read") else read_s) + (0 if keys.get("write") else written_s)
    beside = max(alone, read_s if keys.get("read") else 0, written_s if keys.get("write") else 0)
    told = rest + (read_s + host_s + written_s + (groups - 1) * beside) / groups
    assert update_s(trial) == pytest.approx(told, rel=0.01)
    assert update_s(trial) < in_turns
