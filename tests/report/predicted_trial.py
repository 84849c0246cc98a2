"""Simulated trials made by hand: each test says which bytes, FLOPs and collectives were counted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.report.sample_run import SampleTrial, model, trial_record
from tests.tools.rank_records import ledger_row, rank_record
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.models.parameters import count_parameters
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.clock.step import ExpectedStep
from zerobench.records.records import (
    CollectiveTraffic,
    ContextMemory,
    CountedFlops,
    DeviceMemory,
    MemoryRow,
    NvmeTraffic,
    ParameterTensor,
)
from zerobench.records.trials import Trial
from zerobench.report.figures.capacity import fit_of
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.trial import TrialFigures

Ledger = Mapping[tuple[StepKind, Phase], Mapping[Category, int]]


def asked(strategy: str = "zero2", **fields: Any) -> TrialSpec:
    """A trial of a small GPT-2 on eight simulated H100, one sequence of 1,024 tokens a GPU, in bf16."""
    usual = {"model": model(), "gpus_per_node": 8, "evidence": "simulated", "optimizer": "fused_adamw"}
    predicted = {"prediction": {"gpu": "H100 SXM"}}
    return TrialSpec.model_validate({**usual, **predicted, **fields, "strategy": strategy})


def rows(place: Place, ledger: Ledger) -> list[MemoryRow]:
    """Memory rows in which what is live is also the peak."""
    return [
        ledger_row(step, phase, place, category, size, size)
        for (step, phase), sizes in ledger.items()
        for category, size in {**sizes, Category.TOTAL: sum(sizes.values())}.items()
    ]


def reserved(step: StepKind, phase: Phase, nbytes: int, occupied_bytes: int | None = None) -> DeviceMemory:
    """What the model of the allocator reserves at most in a phase, and in how much of that something lies."""
    sizes = {"allocated_bytes": 0, "peak_allocated_bytes": 0, "reserved_bytes": 0, "peak_reserved_bytes": nbytes}
    return DeviceMemory(
        step=step,
        phase=phase,
        **sizes,
        alloc_retries=0,
        nvml_used_bytes=None,
        nvml_process_bytes=None,
        peak_occupied_bytes=occupied_bytes,
    )


def trial(
    spec: TrialSpec,
    device: Ledger | None = None,
    host: Ledger | None = None,
    *,
    flops: Mapping[Phase, int] | None = None,
    collectives: Sequence[CollectiveTraffic] = (),
    nvme: Sequence[NvmeTraffic] = (),
    allocator: Sequence[DeviceMemory] = (),
    context: ContextMemory | None = None,
    num_params: int | None = None,
) -> SampleTrial:
    """A completed trial with one rank."""
    counts = count_parameters(spec.model)
    assert counts is not None
    total = counts.total if num_params is None else num_params
    by_component = counts.component_counts() if num_params is None else {"mlp": total}
    rank = rank_record(
        spec.trial_id,
        world_size=spec.world_size,
        hostname="node-1",
        status=Status.COMPLETED,
        device_type="simgpu",
        device_name="H100 SXM",
        parameters=ParameterTensor(total=total, trainable=total, by_component=by_component),
        micro_batch_size=spec.micro_batch_size,
        memory=rows(Place.DEVICE, device or {}) + rows(Place.HOST, host or {}),
        device_memory=list(allocator),
        nvme=list(nvme),
        collectives=list(collectives),
        flops=[CountedFlops(step=StepKind.STEADY, phase=p, flops=n) for p, n in (flops or {}).items()],
        context=context,
    )
    return SampleTrial(spec, trial_record(spec), [rank])


def row(
    sample: Trial, device_bytes: int, host_bytes: int | None = None, expected: ExpectedStep | None = None
) -> TrialFigures:
    """Figures of `sample` where a GPU and a node have this much memory and a step is expected to take this time."""
    figures = trial_figures(sample)
    return replace(figures, fit=fit_of(sample, figures.needs, device_bytes, host_bytes), bound=None, expected=expected)


def with_memory(figures: TrialFigures, device_bytes: int) -> TrialFigures:
    """`figures` on a GPU with this much memory."""
    return replace(figures, fit=replace(figures.fit, device=replace(figures.device, capacity_bytes=device_bytes)))


def collective(
    kind: str, phase: Phase, message_bytes: int, group_size: int = 8, step: StepKind = StepKind.STEADY, calls: int = 1
) -> CollectiveTraffic:
    """So many calls of a collective."""
    return CollectiveTraffic(
        step=step, phase=phase, kind=kind, group_size=group_size, calls=calls, message_bytes=message_bytes
    )
