"""Two runs of one sweep as they might lie on disk, before and after an upgrade: something to say about each trial."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, on_cpu, spec, write_run
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.records import Failure
from zerobench.records.store import Plan, load_run
from zerobench.report.figures.compare.comparison import Comparison, compare

OUT_OF_MEMORY = Failure(message="the device ran out of memory", rank=2)
BIG_BUCKET = {"zero_optimization.reduce_bucket_size": 500_000_000}
BASE_S, SLOWER_S = (0.2180, 0.2191, 0.2212, 0.2205), (0.2361, 0.2377, 0.2349, 0.2380)


def environment(**versions: str) -> dict[str, Any]:
    """What a run on eight H100 recorded; `versions` change it."""
    return {
        "captured_at_s": 1_767_322_800.0,
        "hostname": "node-1",
        "versions": {"zerobench": "0.1.0", "python": "3.12.3", "torch": "2.12.0", "deepspeed": "0.19.7", **versions},
        "torch_build": {"cuda": "13.0", "hip": None, "git_version": None},
        "driver": {"version": "580.65.06", "cuda_version": "13.0"},
        "gpus": [{"name": "NVIDIA H100 80GB HBM3", "total_bytes": 80 * 2**30, "uuid": f"GPU-{i}"} for i in range(8)],
        "topology": [{"gpus": ["GPU-0", "GPU-1"], "pcie": "NODE", "nvlinks": 18, "through": "nvswitch"}],
        "machine": {"cpu": {"model": "AMD EPYC 9654", "usable_cores": 192}, "memory_bytes": 2**41, "kernel": "6.8.0"},
        "git": {"zerobench": {"commit": "0123456789abcdef", "dirty": False}},
        "variables": {},
    }


def lay_out(path: Path, name: str, trials: Sequence[SampleTrial], recorded: dict[str, Any] | None = None) -> Path:
    """A run of `trials` called `name`, in a folder of that name under `path`."""
    folder = write_run(path / name, trials, samples=False)
    plan = Plan.model_validate_json(folder.plan.read_text())
    folder.plan.write_text(plan.model_copy(update={"run_id": name}).model_dump_json())
    folder.environment.write_text(json.dumps(environment() if recorded is None else recorded))
    return folder.path


def repeats(asked: TrialSpec, seconds: Sequence[float]) -> list[SampleTrial]:
    """The same trial again and again, each with steps of so many seconds."""
    return [
        completed_trial(asked.model_copy(update={"repeat": index}), step_s=step_s)
        for index, step_s in enumerate(seconds)
    ]


def with_ranks_of(asked: TrialSpec, other: SampleTrial) -> SampleTrial:
    """Trial `asked` as if it had done what `other` did, which another version may have made its default."""
    mine = completed_trial(asked)
    ranks = [rank.model_copy(update={"trial_id": asked.trial_id}) for rank in other.ranks]
    return SampleTrial(asked, mine.record, ranks)


def before() -> list[SampleTrial]:
    """The older version: seven trials, three of them four times."""
    return [
        completed_trial(spec("single", gpus_per_node=1, gradient_accumulation_steps=8), step_s=1.52),
        failed_trial(spec("zero0", micro_batch_size=64), OUT_OF_MEMORY),
        *repeats(spec("zero1"), BASE_S),
        *repeats(spec("zero2"), BASE_S),
        *repeats(spec("zero3"), BASE_S),
        completed_trial(spec("zero3", offload_optimizer="cpu"), step_s=0.705),
    ]


def after() -> list[SampleTrial]:
    """The newer one: stage 1 is slower, stage 2 has a larger bucket, stage 3 runs out of memory once."""
    grown = [
        with_ranks_of(spec("zero2", repeat=index), completed_trial(spec("zero2", ds_config=BIG_BUCKET), step_s=seconds))
        for index, seconds in enumerate(reversed(BASE_S))
    ]
    stage_3 = repeats(spec("zero3"), BASE_S[:3])
    return [
        failed_trial(spec("zero0", micro_batch_size=64), OUT_OF_MEMORY),
        *repeats(spec("zero1"), SLOWER_S),
        *grown,
        *stage_3,
        failed_trial(spec("zero3", repeat=3), OUT_OF_MEMORY, Status.OUT_OF_DEVICE_MEMORY),
        completed_trial(spec("zero3", offload_optimizer="cpu"), step_s=0.735),
        completed_trial(spec("zero3", offload_optimizer="cpu", micro_batch_size=4)),
    ]


def cpu_repeats(asked: TrialSpec, seconds: Sequence[float]) -> list[SampleTrial]:
    """Repeats as CPU ranks leave them."""
    return [on_cpu(trial) for trial in repeats(asked, seconds)]


def compared(path: Path, base: Sequence[SampleTrial], new: Sequence[SampleTrial]) -> Comparison:
    """The comparison of two runs of these trials on the same machine."""
    runs = lay_out(path, "base", base), lay_out(path, "new", new)
    return compare(*map(load_run, runs))
