"""A plan's run as it might lie on disk: simulated trials of the sample's arithmetic, traffic and FLOPs by the paper."""

from collections.abc import Sequence
from typing import Any

from tests.report.sample_run import SampleTrial, model, rank_record, skipped_trial, trial_record
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.derived.cluster import Cluster, read_cluster
from zerobench.config.models.parameters import count_parameters
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.sweep.plan import cells, replace_evidence
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.records.records import CollectiveTraffic, CountedFlops, RankRecord

LARGE = model("gpt2-2b", layers=32, width=2304)


def cluster(**words: str) -> Cluster:
    """Eight H200 in a node of 1 TB; `words` change it."""
    return read_cluster(**({"gpu": "h200", "gpus": "8", "host_memory": "1TB"} | words))


def plan_trials(place: Cluster, **work: object) -> list[SampleTrial]:
    """The cells of a two-billion-parameter model on `place`, as they might have been predicted."""
    planned = cells({"model": LARGE, "micro_batch_size": 2, "sequence_length": 1024, **work}, place)
    return [_trial(item) for item in planned]


def _trial(item: PlannedTrial) -> SampleTrial:
    if item.skipped is not None:
        skipped = skipped_trial(item.trial, item.skipped.rule)
        return SampleTrial(item.trial, skipped.record.model_copy(update={"reason": item.skipped.reason}), [])
    return predicted_trial(item.trial)


def formula_trials(place: Cluster, **work: object) -> list[SampleTrial]:
    """The same cells by formula, which knows what the paper's arithmetic does not."""
    planned = cells({"model": LARGE, "micro_batch_size": 2, "sequence_length": 1024, **work}, place)
    return [
        SampleTrial(item.trial, trial_record(item.trial), [formula_record(item.trial)])
        if item.skipped is None
        else _trial(item)
        for item in replace_evidence(planned, Evidence.FORMULA)
    ]


def predicted_trial(asked: TrialSpec) -> SampleTrial:
    """A simulated trial that completed: one rank of many, untimed."""
    return SampleTrial(asked, trial_record(asked, ranks_expected=1, ranks_reported=1), [predicted_rank(asked)])


def predicted_rank(asked: TrialSpec) -> RankRecord:
    """What the simulated rank left."""
    nothing: dict[str, Any] = {
        "losses": [],
        "learning_rates": [],
        "step_times": [],
        "nvme": [],
        "process_memory": [],
        "departures": [],
    }
    counted = {"collectives": _collectives(asked), "flops": _flops(asked)}
    return rank_record(asked, 0).model_copy(update=nothing | counted | {"backend": None, "device_uuid": None})


def _collectives(asked: TrialSpec) -> Sequence[CollectiveTraffic]:
    """The paper's traffic in bf16: 2 Psi elements at stages 0 to 2, 3 Psi at stage 3."""
    size = 2 * _num_params(asked)
    kinds = {
        0: [("all_reduce", Phase.BACKWARD)],
        1: [("reduce_scatter", Phase.BACKWARD), ("all_gather", Phase.STEP)],
        2: [("reduce_scatter", Phase.BACKWARD), ("all_gather", Phase.STEP)],
        3: [("all_gather", Phase.FORWARD), ("all_gather", Phase.BACKWARD), ("reduce_scatter", Phase.BACKWARD)],
    }
    return [
        CollectiveTraffic(step=step, phase=phase, kind=kind, group_size=asked.world_size, calls=30, message_bytes=size)
        for step in StepKind
        for kind, phase in kinds[asked.zero_stage or 0]
    ]


def _flops(asked: TrialSpec) -> Sequence[CountedFlops]:
    forward = 2 * _num_params(asked) * asked.micro_batch_size * asked.sequence_length
    phases = {Phase.FORWARD: forward, Phase.BACKWARD: 2 * forward, Phase.STEP: 0}
    return [CountedFlops(step=step, phase=phase, flops=flops) for step in StepKind for phase, flops in phases.items()]


def _num_params(asked: TrialSpec) -> int:
    counts = count_parameters(asked.model)
    assert counts is not None
    return counts.total
