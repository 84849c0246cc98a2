"""A trial on two nodes that are told apart by nothing but their index: one hostname, one name for their GPUs."""

from pathlib import Path

from tests.report.sample_run import (
    MIB,
    START_S,
    SampleTrial,
    completed_trial,
    gpu_uuid,
    nvml_summary,
    sample_lines,
    spec,
    write_run,
)
from zerobench.records.folder import RunFolder
from zerobench.records.records import NvmlSummary, RankRecord

HOSTNAME = "localhost"
ASKED = spec("zero1", num_nodes=2, gpus_per_node=1)


def two_node_trial(*, ahead_s: float = 0.0, nodes: list[str] | None = None, job: str | None = None) -> SampleTrial:
    """The trial; the clock of its second node is `ahead_s` ahead, and that node's GPU held 100 MiB more."""
    trial = completed_trial(ASKED, step_s=2.0)
    ranks = [_rank(rank, ahead_s if rank.rank == 1 else 0.0) for rank in trial.ranks]
    summaries = [_summary(trial.ranks[index], index) for index in (0, 1)]
    record = trial.record.model_copy(update={"nvml": summaries, "nodes": nodes or [], "job": job})
    return SampleTrial(ASKED, record, ranks)


def write_two_nodes(path: Path, trial: SampleTrial, *, ahead_s: float = 0.0) -> RunFolder:
    """A run with that trial and the samples of both nodes."""
    run = write_run(path, [trial], samples=False)
    for rank in trial.ranks:
        assert rank.node is not None
        text = _samples(rank, ahead_s if rank.node == 1 else 0.0)
        run.trial(ASKED.trial_id).nvml_samples(rank.node).write_text(text)
    return run


def _rank(rank: RankRecord, ahead_s: float) -> RankRecord:
    """As the worker on node `rank` would write it."""
    marks = [
        mark.model_copy(update={"start_s": mark.start_s + ahead_s, "end_s": mark.end_s + ahead_s})
        for mark in rank.marks
    ]
    where = {"hostname": HOSTNAME, "node": rank.rank, "local_rank": 0, "device_uuid": gpu_uuid(0), "pid": 4000}
    return rank.model_copy(update={**where, "marks": marks})


def _summary(rank: RankRecord, node: int) -> NvmlSummary:
    found = nvml_summary([rank])
    device = found.devices[0].model_copy(update={"gpu_uuid": gpu_uuid(0), "index": 0})
    device = device.model_copy(update={"peak_used_bytes": (device.peak_used_bytes or 0) + node * 100 * MIB})
    faults = [f"a fault of node {node}"]
    return found.model_copy(update={"hostname": HOSTNAME, "node": node, "devices": [device], "faults": faults})


def _samples(rank: RankRecord, ahead_s: float) -> str:
    """The lines of sample_run, on the node's clock, each reading a MiB larger on node 1."""
    head, *lines = sample_lines([rank]).splitlines()
    cells = [line.split(",") for line in lines]
    shifted = [
        [f"{float(t_s) + ahead_s:.6f}", gpu_uuid(0), str(int(used) + (rank.node or 0) * MIB), *rest]
        for t_s, _, used, *rest in cells
    ]
    assert float(shifted[0][0]) == START_S + ahead_s
    return "\n".join([head, *(",".join(line) for line in shifted)]) + "\n"
