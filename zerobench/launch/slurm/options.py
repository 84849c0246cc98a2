"""Options of `zerobench submit` beyond the sweep: nodes, time limits, and how ranks are started there.

Stored with the run, so that `--resume` needs none of them again.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError, field_validator

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.derived.machine import MAX_RANKS, Accelerator, Machine
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.trial.base import Spec, user_error
from zerobench.config.trial.plain import one_line
from zerobench.config.trial.trial import Count, Positive, TrialSpec
from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.store import read_json


def refuse_own_environments(trials: Iterable[TrialSpec]) -> None:
    """Raise UserError if one of `trials` does not run under zerobench's own Python."""
    named = {trial.strategy for trial in trials}
    refused = {name for name in named if name in STRATEGIES and STRATEGIES[name].environment}
    if refused:
        raise UserError(
            f"strategy: {', '.join(sorted(refused))}: jobs cannot use its separate environment; exclude it "
            "here (--only) and use zerobench run"
        )


UNKNOWN_CORES = 2**20
"""Cores of a node of unknown size: no trial is skipped for lack of them."""

_KEY = re.compile(r"[a-z][a-z-]*")
_ALIKE = ("nodes", "gpus-per-node", "partition", "account", "qos", "time", "constraint", "reservation", "mem")
_OURS = {
    "array": "--throttle and --trials-per-job",
    "test-only": "--dry-run",
    **{name: f"--{name}" for name in _ALIKE},
    **dict.fromkeys(("dependency", "output", "error", "open-mode", "signal", "job-name", "parsable", "wait", "wrap")),
    "kill-on-invalid-dep": None,
}
"""sbatch options that zerobench sets itself, with its own option for them."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("unprintable character, not allowed in a batch script")
    return text


Text = Annotated[str, Field(min_length=1), AfterValidator(_printable)]


class Launcher(StrEnum):
    """Program that starts a trial's ranks."""

    SRUN = "srun"
    """Slurm, one task per rank."""
    DEEPSPEED = "deepspeed"
    """DeepSpeed's own launcher, once per node."""
    LOCAL = "local"
    """DeepSpeed's own launcher on this machine, without Slurm."""


class ContainerRuntime(StrEnum):
    """Program that starts a container."""

    PYXIS = "pyxis"
    """NVIDIA's plugin of srun: `srun --container-image`."""
    APPTAINER = "apptainer"
    """`apptainer exec --nv`."""


class SubmitOptions(Spec):
    """All options, named as on the command line; None is the default of sbatch or of the template."""

    nodes: Annotated[Positive, Field(le=MAX_RANKS)] = 1
    gpus_per_node: Annotated[Count, Field(le=MAX_RANKS)] | None = None
    gpu: Text | None = None
    """The nodes' GPU by its name in the hardware catalogue."""
    cpus_per_node: Positive | None = None
    partition: Text | None = None
    cpu_partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    time: Text | None = None
    constraint: Text | None = None
    reservation: Text | None = None
    mem: Text | None = None
    container: Text | None = None
    container_runtime: ContainerRuntime = ContainerRuntime.PYXIS
    launcher: Launcher = Launcher.SRUN
    python: Text | None = None
    trials_per_job: Positive | None = None
    """Trials per array task; None: see grouping."""
    throttle: Positive | None = None
    sbatch: tuple[Text, ...] = ()
    """Other options of sbatch, `KEY=VALUE` or `KEY`."""

    @field_validator("gpu")
    @classmethod
    def _catalogued(cls, name: str | None) -> str | None:
        return None if name is None else known_gpu(name, "--gpu").name

    @field_validator("time")
    @classmethod
    def _readable(cls, text: str | None) -> str | None:
        if text is not None:
            read_time(text)
        return text

    @field_validator("sbatch")
    @classmethod
    def _known(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            read_extra(word)
        return words

    @property
    def time_limit_s(self) -> int | None:
        """The requested time limit in seconds."""
        return None if self.time is None else read_time(self.time)

    @property
    def extra(self) -> dict[str, str | bool]:
        """Options of `sbatch` by name; True for one without a value."""
        return dict(read_extra(word) for word in self.sbatch)


def read_options(given: dict[str, object]) -> SubmitOptions:
    """Read options from the command line; None or an empty list means not given.

    Raises UserError, one line that begins with the option.
    """
    given_values = {name: value for name, value in given.items() if value not in (None, [], ())}
    if given_values.get("launcher") == Launcher.LOCAL:
        raise unknown_choice("--launcher", given_values["launcher"], [Launcher.SRUN, Launcher.DEEPSPEED])
    try:
        return SubmitOptions.model_validate(given_values)
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0]).replace("_", "-")
        message = user_error(error, SubmitOptions, "").args[0].removeprefix(": ")
        raise UserError(one_line(f"--{field}: {message.partition(': ')[2]}")) from None


def read_extra(word: str) -> tuple[str, str | bool]:
    """Read an sbatch option, `KEY=VALUE` or `KEY`, with or without dashes.

    Raises UserError if it is not an option's name, is one that zerobench sets itself, or exports variables with values.
    """
    key, equals, value = word.removeprefix("--").partition("=")
    if not _KEY.fullmatch(key):
        raise UserError(one_line(f"--sbatch: {word!r} is not an option; for example --sbatch comment=zerobench"))
    if key in _OURS:
        instead = f"; use {_OURS[key]}" if _OURS[key] else ""
        raise UserError(f"--sbatch: {key}: zerobench sets it itself{instead}")
    if key == "export" and "=" in value:
        raise UserError(
            "--sbatch: export: values would be stored with the run and may be secret; set the variable "
            "in your shell, sbatch passes it on"
        )
    return key, value if equals else True


def read_time(text: str) -> int:
    """Read a time limit in sbatch's forms (sbatch(1), --time): minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S; returns
    seconds.

    Raises UserError if it has none of these forms, or is 0.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UserError(f"--time: {text!r} is not a time; for example 90 (minutes), 1:30:00 or 1-12 (days-hours)")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, *[*parts, 0][:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise UserError(f"--time: {text!r}: must be above 0")
    return total


def time_text(seconds: int) -> str:
    """Return `seconds`, rounded up to whole minutes, in sbatch's form: [D-]HH:MM:00."""
    hours, minutes = divmod(-(-seconds // 60), 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:00"


def cluster_machine(options: SubmitOptions) -> Machine:
    """Return the nodes as the rules see them. This machine does not matter; unknown features are assumed present and
    tried.

    Raises UserError if the number of GPUs per node is not given.
    """
    if options.gpus_per_node is None:
        raise UserError("--gpus-per-node is missing: GPUs per node, 0 for CPU nodes")
    gpu = known_gpu(options.gpu, "--gpu") if options.gpu else None
    on_gpu = options.gpus_per_node > 0
    return Machine(
        accelerator=Accelerator.CUDA if on_gpu else Accelerator.CPU,
        num_nodes=options.nodes,
        num_gpus=options.gpus_per_node,
        gpu_names=(gpu.name,) if gpu and on_gpu else (),
        device_memory_bytes=gpu.capacity_bytes if gpu and on_gpu else None,
        cpu_cores=options.cpus_per_node or UNKNOWN_CORES,
        bf16_slowdown=None,
        supports_bf16=not (gpu and on_gpu and gpu.peak_tflops) or "bf16" in gpu.peak_tflops,
        has_flash_attention=True,
        has_liger=True,
    )


def keep_options(run: RunFolder, options: SubmitOptions) -> None:
    """Write `options` with the run's jobs, for later submissions. Raises OSError if they cannot be written."""
    run.slurm.mkdir(exist_ok=True)
    write_whole(_kept(run), options.model_dump_json(indent=1, exclude_unset=True))


def kept_options(run: RunFolder) -> dict[str, object]:
    """Read the options of earlier submissions; empty without any. Raises UserError if the file is torn or corrupt."""
    return read_json(_kept(run)) if _kept(run).exists() else {}


def _kept(run: RunFolder) -> Path:
    return run.slurm / "options.json"
