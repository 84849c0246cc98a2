"""How long an update takes that swaps: by hand, of one sub-group and of several, in turns and ahead."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.report.sample_run import SampleTrial
from tests.timing.predicted_trials import expected, gpu, links, predicted
from tests.tools.known import known
from zerobench.records import Phase, StepKind
from zerobench.report.step_time.expected import timed_work
from zerobench.report.step_time.swaps import Pass, swapping_s
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
