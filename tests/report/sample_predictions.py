"""Trials with ledgers written out by hand, measured and predicted, and predictions made of the sample run's trials."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.report.sample_run import (
    SampleTrial,
    completed_trial,
    cpu_trials,
    model,
    on_cpu,
    rank_record,
    spec,
    trial_record,
)
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.records.records import MemoryRow, RankRecord

LiveAndPeak = Mapping[Category, tuple[int, int]]

FORWARD = (StepKind.STEADY, Phase.FORWARD, Place.DEVICE)
BACKWARD = (StepKind.STEADY, Phase.BACKWARD, Place.DEVICE)


def asked(strategy: str = "zero1", **fields: Any) -> TrialSpec:
    """Work for two CPU ranks."""
    return spec(strategy, **{"gpus_per_node": 2, "model": model("gpt2-tiny", layers=2, width=128), **fields})


def ledger(where: tuple[StepKind, Phase, Place], parts: LiveAndPeak) -> list[MemoryRow]:
    """The rows of one phase and place, their total among them."""
    total = (sum(live for live, _ in parts.values()), sum(peak for _, peak in parts.values()))
    return [row(where, category, *sizes) for category, sizes in {**parts, Category.TOTAL: total}.items()]


def row(where: tuple[StepKind, Phase, Place], category: Category, live: int, peak: int | None) -> MemoryRow:
    """One row."""
    step, phase, place = where
    sizes = {"live_bytes": live, "at_peak_bytes": peak, "own_peak_bytes": peak}
    return MemoryRow(step=step, phase=phase, place=place, category=category, **sizes)


def held_by(trial: TrialSpec, rank: int, memory: Sequence[MemoryRow], **fields: Any) -> RankRecord:
    """The record of a CPU rank with just this ledger; `fields` change it."""
    cpu: dict[str, Any] = {
        "device_type": "cpu",
        "device_name": "cpu",
        "device_uuid": None,
        "device_memory": [],
        "context": None,
    }
    return rank_record(trial, rank).model_copy(update={**cpu, "memory": list(memory), **fields})


def trial_of(trial: TrialSpec, *ranks: RankRecord, status: Status = Status.COMPLETED, **fields: Any) -> SampleTrial:
    """A trial whose ranks left these records."""
    return SampleTrial(trial, trial_record(trial, status, ranks_reported=len(ranks), **fields), ranks)


def measured(trial: TrialSpec, *ledgers: Sequence[MemoryRow]) -> SampleTrial:
    """A measured trial on CPU ranks, a ledger for each."""
    return trial_of(trial, *(held_by(trial, rank, memory) for rank, memory in enumerate(ledgers)))


def predicted(trial: TrialSpec, memory: Sequence[MemoryRow], evidence: str = "simulated", rank: int = 0) -> SampleTrial:
    """The prediction of rank `rank` of the same work, for CPU ranks."""
    like = foretold(trial, evidence, rank)
    return trial_of(like, held_by(like, rank, memory, losses=[], step_times=[]))


def foretold(trial: TrialSpec, evidence: str, rank: int = 0, gpu: str | None = None) -> TrialSpec:
    """What a prediction of `trial` is asked to do."""
    return TrialSpec.model_validate(
        {**trial.model_dump(), "evidence": evidence, "prediction": {"rank": rank, "gpu": gpu}}
    )


def foretelling(trial: SampleTrial, evidence: str, factor: float, gpu: str | None = None) -> SampleTrial:
    """A prediction made of rank 0 of a measured trial, its activations scaled by `factor`, no process around it."""
    like = foretold(trial.spec, evidence, gpu=gpu)
    memory = _scaled(trial.ranks[0].memory, factor)
    without: dict[str, Any] = {"losses": [], "step_times": [], "process_memory": [], "marks": [], "nvme": []}
    rank = trial.ranks[0].model_copy(update={**without, "memory": memory, "trial_id": like.trial_id})
    return trial_of(like, rank)


def _scaled(memory: Sequence[MemoryRow], factor: float) -> list[MemoryRow]:
    ledgers: dict[tuple[StepKind, Phase, Place], dict[Category, tuple[int, int]]] = {}
    for one in memory:
        if one.category not in {Category.TOTAL, Category.REST_OF_PROCESS}:
            times = factor if one.category is Category.ACTIVATIONS else 1.0
            sizes = (int(one.live_bytes * times), int((one.at_peak_bytes or 0) * times))
            ledgers.setdefault((one.step, one.phase, one.place), {})[one.category] = sizes
    return [line for where, parts in ledgers.items() for line in ledger(where, parts)]


def predicted_trials() -> list[SampleTrial]:
    """A quickstart and an offloaded trial on CPU ranks, predicted in two worlds, with one loss that disagrees."""
    *stages, last = cpu_trials()
    wrong = on_cpu(completed_trial(last.spec, loss_error=0.31))
    offloaded = on_cpu(
        completed_trial(stages[-1].spec.model_copy(update={"offload_optimizer": Offload.CPU}), loss_noise=0)
    )
    trials = [*stages, offloaded, wrong]
    simulated = [foretelling(trial, "simulated", 1.02 - 0.01 * index) for index, trial in enumerate(trials)]
    return [*trials, *simulated, *(foretelling(trial, "solo", 1.0) for trial in trials[:3])]
