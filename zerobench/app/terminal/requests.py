"""Requests of commands with many options: each field declares its option and default."""
# ruff: noqa: RUF009 -- what is called gives fields

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from zerobench.app.terminal import completion
from zerobench.app.terminal.options import PYTHON_OPTION, REPORTS, REPORTS_OPTION, RUN


def _declared(option: Any, default: Any = None) -> Any:
    return field(default=default, metadata={"option": option})


def _option(metavar: str, about: str, *names: str, **more: Any) -> Any:
    return _declared(typer.Option(*names, metavar=metavar, help=about, **more))


def _argument(metavar: str, about: str, **more: Any) -> Any:
    return _declared(typer.Argument(metavar=metavar, help=about, **more))


def _flag(name: str, about: str) -> Any:
    return _declared(typer.Option(name, help=about), default=False)


@dataclass(frozen=True)
class SweepRequest:
    """Options that select and change a sweep."""

    sweep: str | None = _argument("SWEEP", "Sweep file, or name of a shipped sweep.", autocompletion=completion.sweeps)
    sets: list[str] | None = _option(
        "AXIS=VALUE,...",
        "Replace a sweep axis or setting (timeout_s=900: seconds without progress); may be repeated.",
        "--set",
        autocompletion=completion.axis_values,
    )
    only: list[str] | None = _option(
        "AXIS=VALUE,...", "Keep only these trials; may be repeated.", autocompletion=completion.axis_values
    )


@dataclass(frozen=True)
class RunRequest(SweepRequest):
    """Options of `zerobench run`."""

    repeats: int | None = _option("N", "Run each trial N times.", min=1)
    dry_run: bool = _flag("--dry-run", "List the trials without running them.")
    resume: str | None = _option("RUN", "Run missing and failed trials of an earlier run.")
    reports: Path = _declared(REPORTS_OPTION, REPORTS)
    hostfile: Path | None = _option("FILE", "Nodes, one `name slots=N` per line.")
    frontier: str | None = _option("AXIS", "Measure the largest that fits: model, micro-batch or sequence-length.")
    capacity: str | None = _option("SIZE", "Memory limit per rank (the GPU's memory).")
    python: str | None = _declared(PYTHON_OPTION)


@dataclass(frozen=True)
class SubmitRequest(SweepRequest):
    """Options of `zerobench submit`; for fields of SubmitOptions, None means not given."""

    repeats: int | None = _option("N", "Run each trial N times.", min=1)
    nodes: int | None = _option("N", "Maximum nodes per trial (1).", min=1)
    gpus_per_node: int | None = _option("N", "GPUs per node; 0 for CPU nodes.", min=0)
    gpu: str | None = _option("NAME", "GPU name, for predictions: h200.", autocompletion=completion.gpus)
    cpus_per_node: int | None = _option("N", "Cores per node (all that Slurm gives).", min=1)
    partition: str | None = _option("NAME", "Partition for trials.")
    cpu_partition: str | None = _option("NAME", "Partition for predictions and the report (--partition).")
    account: str | None = _option("NAME", "As for sbatch.")
    qos: str | None = _option("NAME", "As for sbatch.")
    time: str | None = _option("TIME", "Time limit per job (from its trials' timeouts).")
    constraint: str | None = _option("LIST", "As for sbatch; trials only.")
    reservation: str | None = _option("NAME", "As for sbatch.")
    mem: str | None = _option("SIZE", "Memory per node (all of it).")
    container: str | None = _option("IMAGE", "Container image for the ranks.")
    container_runtime: str | None = _option("NAME", "pyxis (the default) or apptainer.")
    launcher: str | None = _option("NAME", "Launcher: srun (the default) or deepspeed.")
    python: str | None = _option("PATH", "Python interpreter of the ranks (this one).")
    trials_per_job: int | None = _option("N", "Trials per job, run in sequence.", min=1)
    throttle: int | None = _option("K", "Array tasks running at a time.", min=1)
    sbatch: list[str] | None = _option("KEY=VALUE", "Any other sbatch option; may be repeated.")
    dry_run: bool = _flag("--dry-run", "Show what would be submitted; write nothing.")
    local: bool = _flag("--local", "Run the same scripts here, without Slurm.")
    resume: str | None = _option("RUN", "Submit missing trials of an earlier run.")
    reports: Path = _declared(REPORTS_OPTION, REPORTS)


@dataclass(frozen=True)
class ValidateRequest(SweepRequest):
    """Options of `zerobench validate`."""

    worlds: str | None = _option("WORLD,...", "Predictions: solo, simulated, formula, emulated (all but emulated).")
    run: str | None = _option("RUN", "Read an earlier run instead of running.")
    details: bool = _flag("--details", "Show the errors of each phase, and every mistake by name.")
    python: str | None = _declared(PYTHON_OPTION)
    reports: Path = _declared(REPORTS_OPTION, REPORTS)
    markdown: Path | None = _option("FILE", "Write the tables as Markdown too.")


@dataclass(frozen=True)
class CompareRequest:
    """Options of `zerobench compare`."""

    base: str | None = _argument(
        "BASE",
        "The run before; with --against, the run after (newest of the baseline's sweep).",
        autocompletion=completion.runs,
    )
    new: str | None = _argument("NEW", "The run after, of the same sweep.", autocompletion=completion.runs)
    against: str | None = _option(
        "NAME", "Compare NEW with this baseline instead of BASE.", autocompletion=completion.baselines
    )
    fail_on: str | None = _option("LIMIT,...", "Limits; exit code 1 beyond: memory:2%, memory:100MiB, speed:5%.")
    markdown: Path | None = _option("FILE", "Write Markdown for a pull request too.")
    html: Path | None = _option("FILE", "Write the page with charts too.")
    details: bool = _flag("--details", "Show each peak's difference by category, and its causes.")
    reports: Path = _declared(REPORTS_OPTION, REPORTS)


@dataclass(frozen=True)
class ExportRequest:
    """Options of `zerobench export`: the tools and their destinations."""

    run: str | None = _declared(RUN)
    prometheus: Path | None = _option("FILE", ".prom file for node_exporter's textfile collector.")
    tensorboard: Path | None = _option("DIR", "TensorBoard log folder, one run per trial.")
    wandb: str | None = _option("PROJECT", "Weights & Biases project; WANDB_MODE applies.")
    step_timeline: Path | None = _option("FILE", "Streams over each expected step, for ui.perfetto.dev.")
    memory_viz: Path | None = _option("DIR", "Memory by category for pytorch.org/memory_viz, a file a trial.")
    perfetto: Path | None = _option("FILE", "Memory by category and phases for ui.perfetto.dev.")
    reports: Path = _declared(REPORTS_OPTION, REPORTS)


@dataclass(frozen=True)
class ExplainRequest:
    """Options of `zerobench explain` for a run or a log."""

    trial: str | None = _argument("TRIAL", "Trial name in the tables, id, or a prefix of either.")
    other: str | None = _argument("TRIAL", "Second trial; RUN:TRIAL for another run.")
    changes: bool = _flag("--changes", "Predict changes that make the trial fit its GPUs, with their cost in time.")
    what_if: str | None = _option(
        "NAME=VALUE,...",
        "What a predicted step would take: link=2x, network=50GB/s, host-link, host-memory, nvme, gpu=NAME, batch=2x.",
    )
    details: bool = _flag("--details", "Show the arithmetic of each part, ranks, traffic and limits.")
