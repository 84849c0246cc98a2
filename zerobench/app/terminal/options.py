"""Arguments and options that several commands share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from zerobench.app.terminal import completion
from zerobench.common.errors import UserError
from zerobench.common.training_python import OPTION, choose_python


def _check_folder(path: Path) -> Path:
    """Raise UserError for a path that cannot be a folder: a link to itself, a name that is too long."""
    try:
        path.stat()
    except FileNotFoundError:
        return path
    except OSError as error:
        shown = str(path) if len(str(path)) <= _LONGEST else f"{str(path)[:_LONGEST]}..."
        raise UserError(f"--reports: {shown}: {error.strerror}") from None
    return path


def _choose(named: str | None) -> str | None:
    """Have the interpreter that was named be the ranks' from here on. Raises UserError: it cannot be used."""
    if named is not None:
        choose_python(named)
    return named


_LONGEST = 100
REPORTS_OPTION = typer.Option("--reports", metavar="DIR", help="Folder of runs.", callback=_check_folder)
PYTHON_OPTION = typer.Option(
    OPTION,
    metavar="PATH",
    help="Python of your training environment (ZEROBENCH_PYTHON, or this one).",
    callback=_choose,
)
PythonPath = Annotated[str | None, PYTHON_OPTION]
Reports = Annotated[Path, REPORTS_OPTION]
RUN = typer.Argument(metavar="RUN", help="Run folder or name (newest run).", autocompletion=completion.runs)
RunName = Annotated[str | None, RUN]
REPORTS = completion.REPORTS

PLAN: Mapping[str, Any] = {
    "sweep": typer.Argument(
        metavar="MODEL|SWEEP",
        help="Model, or sweep to predict instead of stages and offloads.",
        autocompletion=completion.models_and_sweeps,
    ),
    "model": typer.Option(
        metavar="MODEL", help="Preset, transformers config.json or hub id.", autocompletion=completion.models
    ),
    "gpus": typer.Option(metavar="N", help="Total number of GPUs."),
    "gpu": typer.Option(
        metavar="NAME", help="GPU, such as h200; `zerobench models --gpus` lists all.", autocompletion=completion.gpus
    ),
    "gpus_per_node": typer.Option(metavar="N", help="GPUs per node."),
    "host_memory": typer.Option(metavar="SIZE", help="Host memory per node: 1TB."),
    "host_bandwidth": typer.Option(metavar="RATE", help="Host memory bandwidth (two EPYC 9004 sockets)."),
    "nvme": typer.Option(metavar="RATE", help="NVMe read rate per node: 7GB/s."),
    "blocks": typer.Option(
        metavar="NAME",
        help="Blocks that step times are of: transformers (default), or fused (norms and activation one kernel each).",
        autocompletion=completion.blocks,
    ),
    "micro_batch": typer.Option(metavar="N", help="Micro-batch size per GPU (1)."),
    "gradient_accumulation": typer.Option(metavar="N", help="Gradient accumulation steps (1)."),
    "global_batch": typer.Option(
        metavar="N", help="Sequences per step; micro batch, accumulation and checkpointing are searched."
    ),
    "tokens_per_step": typer.Option(metavar="N", help="Global batch in tokens: 4M."),
    "sequence_length": typer.Option(metavar="N", help="Sequence length in tokens (2048, or the model's limit)."),
    "precision": typer.Option(
        metavar="NAME", help="bf16 (default), fp16 or fp32.", autocompletion=completion.precisions
    ),
    "activation_checkpointing": typer.Option(
        "--activation-checkpointing", help="Activation checkpointing: keep each layer's input, recompute the rest."
    ),
    "lora": typer.Option(
        metavar="RANK", help="Train LoRA adapters of this rank on a frozen model: 16; in 4 bits: 16-nf4."
    ),
    "stage": typer.Option(metavar="N,...", help="Only these ZeRO stages."),
    "ds_config": typer.Option(metavar="FILE", help="Predict your own DeepSpeed configuration."),
    "tokens": typer.Option(metavar="N", help="Tokens to train, such as 300B: shows days, GPU-hours, energy."),
    "price": typer.Option(metavar="N", help="Price per GPU-hour, for the cost of --tokens: 2.5."),
    "frontier": typer.Option(metavar="AXIS", help="Largest that fits: model, micro-batch or sequence-length."),
    "evidence": typer.Option(
        metavar="NAME",
        help="emulated (torch's own allocator, if set up), simulated or formula.",
        autocompletion=completion.predictions,
    ),
    "formula": typer.Option("--formula", help="Use closed forms: no torch, one second, less exact."),
    "write": typer.Option(metavar="FILE", help="Write the recommended DeepSpeed configuration."),
    "write_for": typer.Option("--for", metavar="NAME", help='trainer: "auto" for what TrainingArguments set.'),
    "fine_tune": typer.Option("--fine-tune", help="Write fine-tuning learning rate and weight decay."),
    "sets": typer.Option(
        "--set", metavar="AXIS=VALUE,...", help="Replace an axis of SWEEP.", autocompletion=completion.axis_values
    ),
    "details": typer.Option("--details", help="Show memory by category, collectives, bounds and why not the others."),
    "python": PYTHON_OPTION,
    "reports": REPORTS_OPTION,
}
"""Options of `plan` by field of PlanRequest, in the order of its help."""

GPUS = Annotated[str, PLAN["gpus"]]
GPU = Annotated[str, PLAN["gpu"]]
