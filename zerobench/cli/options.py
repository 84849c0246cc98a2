"""The words and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
Reports = Annotated[Path, typer.Option("--reports", metavar="DIR", help="Where run folders lie.", callback=_can_be)]
RunName = Annotated[str | None, typer.Argument(metavar="RUN", help="A run folder or its name; the newest one.")]
SweepName = Annotated[str | None, typer.Argument(metavar="SWEEP", help="A sweep file, or the name of a shipped one.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="AXIS=VALUE,...",
        help="Replace an axis or a value (timeout_s=900: seconds without progress) of the sweep; may be repeated.",
    ),
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="AXIS=VALUE,...", help="Keep only these points; may be repeated.")
]
REPORTS = Path("reports")
"""Where run folders lie unless said otherwise."""

# What is planned, tuned and emulated: the cluster and the work.
Model = Annotated[str | None, typer.Option(metavar="MODEL", help="A preset, a transformers config.json or a hub id.")]
GPUS = typer.Option(metavar="N", help="GPUs of all nodes.")
GPU = typer.Option(metavar="NAME", help="Their name in the hardware catalogue: h200.")
GpusPerNode = Annotated[str, typer.Option(metavar="N", help="GPUs of one node.")]
HostMemory = Annotated[str | None, typer.Option(metavar="SIZE", help="Host memory of one node: 1TB.")]
HostBandwidth = Annotated[
    str, typer.Option(metavar="RATE", help="What that memory moves; two sockets of EPYC 9004 by default.")
]
Nvme = Annotated[str | None, typer.Option(metavar="RATE", help="What the NVMe drives of one node read: 7GB/s.")]
GlobalBatch = Annotated[
    str | None,
    typer.Option(metavar="N", help="Sequences a step: micro batch, accumulation and checkpointing are searched."),
]
TokensPerStep = Annotated[str | None, typer.Option(metavar="N", help="The same in tokens: 4M.")]
SequenceLength = Annotated[str | None, typer.Option(metavar="N", help="Tokens a sequence (2048).")]
PrecisionName = Annotated[str | None, typer.Option(metavar="NAME", help="bf16 (default), fp16 or fp32.")]
Stages = Annotated[str | None, typer.Option(metavar="N,...", help="Only these ZeRO stages.")]
Tokens = Annotated[str | None, typer.Option(metavar="N", help="How long training on so many takes: 300B.")]
EvidenceName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="emulated (torch's own allocator; where it is at hand), simulated, formula."),
]
Write = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the recommended DeepSpeed configuration.")]
WriteFor = Annotated[
    str | None,
    typer.Option("--for", metavar="NAME", help="trainer: what transformers' TrainingArguments say is auto in it."),
]
FineTune = Annotated[bool, typer.Option("--fine-tune", help="Learning rate and weight decay of fine-tuning in it.")]
Details = Annotated[
    bool, typer.Option("--details", help="Memory by category, collectives, bounds, and why not the others.")
]
