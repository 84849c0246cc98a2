"""Requests of `zerobench plan`, `tune` and `explain`. Separate file: imported by `--help`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.config.hardware.usual_node import GPUS_PER_NODE, HOST_BANDWIDTH


@dataclass(frozen=True)
class PlanRequest:
    """Options of the command line, as written."""

    sweep: str | None = None
    """A model's name here means the model."""
    model: str | None = None
    gpus: str | None = None
    gpu: str | None = None
    gpus_per_node: str = str(GPUS_PER_NODE)
    host_memory: str | None = None
    host_bandwidth: str = HOST_BANDWIDTH
    nvme: str | None = None
    blocks: str | None = None
    """Blocks of the expected times; None for those of transformers."""
    micro_batch: str | None = None
    gradient_accumulation: str | None = None
    global_batch: str | None = None
    """Sequences a step; micro batch, accumulation and checkpointing are then varied, as far as they are not given."""
    tokens_per_step: str | None = None
    """The same in tokens."""
    tunes: bool = False
    """True if selective checkpointing and DeepSpeed's keys are varied too."""
    sequence_length: str | None = None
    precision: str | None = None
    activation_checkpointing: bool = False
    lora: str | None = None
    """Rank of the adapters that are trained beside a frozen model."""
    stage: str | None = None
    ds_config: str | None = None
    write: Path | None = None
    write_for: str | None = None
    """`trainer` for transformers' Trainer, which fills in what its arguments say."""
    fine_tune: bool = False
    """True if the hyperparameters are those of fine-tuning, not of training from the start."""
    tokens: str | None = None
    price: str | None = None
    """Per GPU-hour, for what a training of `tokens` costs."""
    frontier: str | None = None
    evidence: str | None = None
    """Source of figures; None for the best that is at hand."""
    formula: bool = False
    """Short for evidence formula."""
    measure: int | None = None
    """Number of the best of a search that are measured on this machine afterwards."""
    sets: list[str] | None = None
    details: bool = False
    """True if all reasons are shown too."""
    python: str | None = None
    """Interpreter whose packages the plan is for; the command line has chosen it already."""
    reports: Path = Path("reports")


_AS_OPTIONS = {
    "micro_batch_size": "micro_batch",
    "gradient_accumulation_steps": "gradient_accumulation",
    "stages": "stage",
}
"""Arguments whose names are not those of PlanRequest."""


def request_of(arguments: Mapping[str, Any]) -> PlanRequest:
    """Request of a command's or a function's arguments, without those that are None; numbers as a command line has
    them.
    """
    given = {_AS_OPTIONS.get(name, name): value for name, value in arguments.items() if value is not None}
    return PlanRequest(**{name: _written(value) for name, value in given.items()})


def _written(value: Any) -> Any:
    if isinstance(value, Sequence) and value and all(isinstance(number, int) for number in value):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
