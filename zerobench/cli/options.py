"""The words and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from zerobench.cli import completion
from zerobench.errors import UserError


def _can_be(path: Path) -> Path:
    """Raises UserError for a path that no folder can have: a link that leads to itself, a name that is too long."""
    try:
        path.stat()
    except FileNotFoundError:
        return path
    except OSError as error:
        shown = str(path) if len(str(path)) <= _LONGEST else f"{str(path)[:_LONGEST]}..."
        raise UserError(f"--reports: {shown}: {error.strerror}") from None
    return path


_LONGEST = 100
Reports = Annotated[Path, typer.Option("--reports", metavar="DIR", help="Folder of runs.", callback=_can_be)]
RunName = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Run folder or name (newest run).", autocompletion=completion.runs)
]
SweepName = Annotated[
    str | None,
    typer.Argument(metavar="SWEEP", help="Sweep file, or name of a shipped sweep.", autocompletion=completion.sweeps),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="AXIS=VALUE,...",
        help="Replace a sweep axis or setting (timeout_s=900: seconds without progress); may be repeated.",
        autocompletion=completion.axis_values,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="AXIS=VALUE,...",
        help="Keep only these trials; may be repeated.",
        autocompletion=completion.axis_values,
    ),
]
Repeats = Annotated[int | None, typer.Option("--repeats", metavar="N", min=1, help="Run each trial N times.")]

REPORTS = completion.REPORTS

# What is planned, tuned and emulated: the cluster and the work.
Model = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Preset, transformers config.json or hub id.", autocompletion=completion.models),
]
GPUS = typer.Option(metavar="N", help="Total number of GPUs.")
GPU = typer.Option(
    metavar="NAME", help="GPU, such as h200; `zerobench models --gpus` lists all.", autocompletion=completion.gpus
)
GpusPerNode = Annotated[str, typer.Option(metavar="N", help="GPUs per node.")]
HostMemory = Annotated[str | None, typer.Option(metavar="SIZE", help="Host memory per node: 1TB.")]
HostBandwidth = Annotated[str, typer.Option(metavar="RATE", help="Host memory bandwidth (two EPYC 9004 sockets).")]
Nvme = Annotated[str | None, typer.Option(metavar="RATE", help="NVMe read rate per node: 7GB/s.")]
BlocksName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Blocks that step times are of: transformers (default), or fused (norms and activation one kernel each).",
    ),
]
GlobalBatch = Annotated[
    str | None,
    typer.Option(metavar="N", help="Sequences per step; micro batch, accumulation and checkpointing are searched."),
]
TokensPerStep = Annotated[str | None, typer.Option(metavar="N", help="Global batch in tokens: 4M.")]
SequenceLength = Annotated[
    str | None, typer.Option(metavar="N", help="Sequence length in tokens (2048, or the model's limit).")
]
PrecisionName = Annotated[
    str | None, typer.Option(metavar="NAME", help="bf16 (default), fp16 or fp32.", autocompletion=completion.precisions)
]
Adapters = Annotated[
    str | None,
    typer.Option(
        "--lora", metavar="RANK", help="Train LoRA adapters of this rank on a frozen model: 16; in 4 bits: 16-nf4."
    ),
]
Stages = Annotated[str | None, typer.Option(metavar="N,...", help="Only these ZeRO stages.")]
Tokens = Annotated[
    str | None, typer.Option(metavar="N", help="Tokens to train, such as 300B: shows days, GPU-hours, energy.")
]
Price = Annotated[str | None, typer.Option(metavar="N", help="Price per GPU-hour, for the cost of --tokens: 2.5.")]
EvidenceName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="emulated (torch's own allocator, if set up), simulated or formula.",
        autocompletion=completion.predictions,
    ),
]
Write = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the recommended DeepSpeed configuration.")]
WriteFor = Annotated[
    str | None,
    typer.Option("--for", metavar="NAME", help='trainer: "auto" for what TrainingArguments set.'),
]
FineTune = Annotated[bool, typer.Option("--fine-tune", help="Write fine-tuning learning rate and weight decay.")]
Details = Annotated[
    bool, typer.Option("--details", help="Show memory by category, collectives, bounds and why not the others.")
]
