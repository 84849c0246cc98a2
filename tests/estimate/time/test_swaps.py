"""How long an update takes that swaps: by hand, of one sub-group and of several, in turns and ahead."""

from dataclasses import replace
from typing import Any

import pytest

from tests.estimate.time.predicted_trials import expected, gpu, links, predicted
from tests.report.predicted_trial import asked
from tests.report.predicted_trial import trial as made
from tests.report.sample_run import SampleTrial
from tests.tools.known import known
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.models.tensors import parameter_tensors
from zerobench.estimate.time.expected import timed_work
from zerobench.estimate.time.swaps import Pass, swapping_s
from zerobench.estimate.time.terms import Work
from zerobench.records.records import NvmeTraffic
from zerobench.records.trials import case_of

DRIVES: dict[str, Any] = {"offload_optimizer": "nvme", "optimizer": "cpu_adam", "nvme_path": "/nvme"}
SHARE = 0.8
"""Of the drives' rate that is reached."""


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
    small = predicted(strategy="zero3", **DRIVES, ds_config={"zero_optimization.sub_group_size": 100_000_000})
    for trial in (whole, small):
        assert update_s(trial) == pytest.approx(without_drives + sum(drives_s(trial)), rel=1e-3)
    assert expected(small).step_s == pytest.approx(expected(whole).step_s, rel=1e-3), "some were written before"


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


def work(read_gb: tuple[int, ...], **keys: Any) -> Work:
    """Drives of 40 GB/s that eight ranks share. No parameter is read alone."""
    config = {f"zero_optimization.{key}": value for key, value in keys.items()} | {"aio.block_size": 2**40}
    spec = asked("zero3", **DRIVES, offload_param="nvme", ds_config=config)
    rows = [
        NvmeTraffic(step=StepKind.STEADY, phase=phase, read_bytes=read * 10**9, written_bytes=out * 10**9, seconds=1.0)
        for phase, read, out in zip((Phase.FORWARD, Phase.BACKWARD, Phase.STEP), read_gb, (1, 2, 5), strict=True)
    ]
    sample = made(spec, nvme=rows)
    return Work(sample.ranks[0], spec, gpu(), links(nvme_gb_per_s=40.0), case_of(sample))


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
def test_passes_wait_for_drives_and_copies_that_nothing_hides(
    read_gb: tuple[int, ...], kept: int, ahead: int, added_s: float
) -> None:
    swaps = work(read_gb, stage3_param_persistence_threshold=kept, stage3_prefetch_bucket_size=ahead)
    assert swapping_s(swaps, PASSES, 0.9, 0.1, 2.0) == pytest.approx((added_s + 0.2 + 0.4, 1.4 + 1.0), rel=1e-12)
    assert swapping_s(replace(swaps, links=links(nvme_gb_per_s=None)), PASSES, 0.9, 0.1, 2.0) is None
    assert swapping_s(replace(swaps, spec=asked()), PASSES, 0.9, 0.1, 2.0) == (0.1, 0.0)


@pytest.mark.parametrize(
    ("reads", "writes", "host_s", "each_s"),
    [(0, 0, 2, 4.4), (1, 0, 2, 3.0), (0, 1, 2, 3.4), (1, 1, 2, 2.0), (1, 1, 1, 1.4), (1, 1, 0.5, 1.4)],
)
def test_what_is_pipelined_goes_on_beside_all_other_sub_groups(
    reads: int, writes: int, host_s: float, each_s: float
) -> None:
    """Five of them, for which drives read for 1.4 s and write for 1 s: the first is waited for from end to end."""
    ways = {"offload_optimizer.pipeline_read": bool(reads), "offload_optimizer.pipeline_write": bool(writes)}
    swaps = work((5, 10, 7), sub_group_size=10_000_000, **ways)
    told = (host_s + 1.4 + 1.0 + 4 * each_s) / 5 - host_s
    assert known(swapping_s(swaps, PASSES, 0.9, 0.1, host_s))[1] == pytest.approx(told, rel=1e-12)


@pytest.mark.parametrize(("nodes", "gpus", "times"), [(1, 8, 1.0), (2, 8, 1.0), (2, 4, 0.5), (4, 16, 2.0)])
def test_the_drives_of_a_node_serve_its_own_ranks_alone(nodes: int, gpus: int, times: float) -> None:
    """Eight ranks read 8 x 5 and 8 x 10 GB forward and backward and write 8 x 1 and 8 x 2, at 40 GB/s; nothing else
    is in the passes, and the one sub-group of the update is read for 1.4 s and written for 1 s.
    """
    swaps = work((5, 10, 7), stage3_param_persistence_threshold=10**9)
    many = replace(swaps, spec=swaps.spec.model_copy(update={"num_nodes": nodes, "gpus_per_node": gpus}))
    passes = [Pass(phase, 0.0, 0.0) for phase in (Phase.FORWARD, Phase.BACKWARD)]
    added_s, update_s = known(swapping_s(many, passes, 0.0, 0.0, 2.0))
    assert added_s == pytest.approx(times * (1.0 + 2.0 + 0.2 + 0.4))
    assert update_s == pytest.approx(times * (1.4 + 1.0))
