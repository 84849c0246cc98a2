"""The forty configurations that each DeepSpeed release is asked for, and what is kept of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.prediction.simulated import gpu_trial
from zerobench.common.vocabulary import Place, StepKind
from zerobench.config.trial.trial import PredictionSpec, TrialSpec
from zerobench.records.instants import GROUPS, peak_instant
from zerobench.records.records import RankRecord

_ROOMY = "b200"
"""The GPU only has to hold all of them but the largest: what is allocated does not depend on it."""
_CPU_OPTIMIZER = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
_CPU_ALL = {**_CPU_OPTIMIZER, "offload_param": "cpu"}

Cell = tuple[str, TrialSpec]
"""Its name, as the tables have it, and the trial."""


def cells() -> dict[str, TrialSpec]:
    """By name: `llama-7b stage 3, 64 GPUs`."""
    return dict(_cells())


def _cells() -> Iterator[Cell]:
    for model in ("gpt3-125m", "gpt3-1.3b", "llama-7b"):
        yield from _stages(model, 8, "", {})
    yield from _stages("llama-13b", 8, "", {}, stages=(1, 2, 3))
    yield from _stages("gpt3-125m", 64, "", {})
    yield from _stages("llama-7b", 64, "", {}, stages=(1, 2, 3))
    yield from _stages("gpt3-125m", 8, ", 4 micro-batches", {"gradient_accumulation_steps": 4})
    yield from _stages("gpt3-1.3b", 8, ", no checkpointing", {"activation_checkpointing": False})
    yield from _stages("gpt3-125m", 8, ", CPU optimizer", _CPU_OPTIMIZER, stages=(1, 2, 3))
    yield from _stages("llama-7b", 8, ", CPU optimizer", _CPU_OPTIMIZER, stages=(1, 2, 3))
    yield from _stages("llama-7b", 8, ", all on CPU", _CPU_ALL, stages=(3,))
    yield from _stages("llama-13b", 64, ", CPU optimizer", _CPU_OPTIMIZER, stages=(2, 3))
    yield from _stages("gpt3-125m", 8, ", fp16", {"precision": "fp16"}, stages=(1,))


def _stages(
    model: str, gpus: int, suffix: str, axes: Mapping[str, object], stages: tuple[int, ...] = (0, 1, 2, 3)
) -> Iterator[Cell]:
    for stage in stages:
        name = f"{model} stage {stage}, {gpus} GPUs{suffix}"
        yield name, gpu_trial(model, stage, gpus, prediction=PredictionSpec(gpu=_ROOMY), **axes)


def figures(rank: RankRecord) -> dict[str, int]:
    """Peaks of the first step, start-up included, and of a steady one, on device and host; the latter's by category."""
    sizes: dict[str, int] = {}
    for step in StepKind:
        for place in (Place.DEVICE, Place.HOST):
            instant = peak_instant(rank, step, place)
            if instant is not None:
                sizes[f"{step.value}_{place.value}_bytes"] = instant.total_bytes
    steady = peak_instant(rank, StepKind.STEADY, Place.DEVICE)
    if steady is not None:
        sizes |= {f"{group}_bytes": steady.group_bytes(group) or 0 for group in GROUPS}
    return sizes
