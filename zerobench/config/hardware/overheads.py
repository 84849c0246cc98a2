"""Device memory that no tensor explains: CUDA context, NCCL, the matrix library's workspaces.

A prediction adds them to what it counts. They differ by driver, CUDA and NCCL version, so what a run on the user's own
GPUs measured (a calibration file, written by `zerobench calibrate`) comes before the published figures that ship as
`overheads.yaml`. Every figure says where it comes from and whether anybody measured it on this GPU.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from zerobench.common.errors import UserError
from zerobench.common.units import counted, format_bytes
from zerobench.config.hardware.hardware import Bytes, find_gpu
from zerobench.config.trial.base import Spec, validated
from zerobench.config.trial.plain import load_plain

CALIBRATION_VARIABLE = "ZEROBENCH_CALIBRATION"
"""Environment variable that names the user's calibration file."""

_SHIPPED = Path(__file__).with_name("overheads.yaml")

Status = Literal["measured", "derived", "transferred", "recalled"]
_STATUS_WORDS = {"transferred": "from published figures", "recalled": "assumed"}
"""What people read in place of two of them."""


Ranks = Annotated[int, Field(ge=1)]


class _SourcedEntry(Spec):
    gpus: tuple[str, ...] | None = None
    """Catalogue names of the GPUs it is for; None is every other one."""
    status: Status
    source: str = Field(min_length=1)


class ContextEntry(_SourcedEntry):
    """A published size of the CUDA context."""

    context_bytes: Bytes


class CollectivesEntry(_SourcedEntry):
    """A published size of NCCL's buffers."""

    min_ranks: Ranks
    """The fewest ranks that it is for."""
    collectives_bytes: Bytes
    """Of a process's first communicator, with NCCL's kernels."""
    another_bytes: Bytes | None = None
    """Of each one more; None is as much as of the first."""


class WorkspaceEntry(_SourcedEntry):
    """The workspace that torch gives the matrix library for each thread."""

    workspace_bytes: Bytes


class Overheads(Spec):
    """The published figures (overheads.yaml)."""

    contexts: tuple[ContextEntry, ...]
    collectives: tuple[CollectivesEntry, ...]
    workspaces: tuple[WorkspaceEntry, ...]


class Spread(Spec):
    """One figure over the ranks that measured it, in bytes."""

    median: int
    min: int
    max: int


class CalibratedGpu(Spec):
    """What the ranks on one model of GPU measured in worlds of one size."""

    gpu: str = Field(min_length=1)
    """As the driver names it."""
    world_size: Ranks
    num_ranks: Ranks
    """Rank records that the figures come from."""
    context_bytes: Spread | None = None
    collectives_bytes: Spread | None = None
    rest_of_process_bytes: Spread | None = None
    """Host memory of a rank that no tensor holds, in the steady state."""


class StepConstants(Spec):
    """What of a step's time differs from machine to machine."""

    slower: float = Field(gt=0)
    """Times that the kernels of the passes take as long as by the shipped rates."""
    launch_s: float = Field(gt=0)
    """In which the host launches a kernel."""
    python_slower: float = Field(gt=0)
    """Times that its Python takes as long as on the host that was measured for the shipped rates."""
    step_s: float = Field(ge=0)
    """Between steps: data, logging."""
    copies_slower: float = Field(default=1.0, gt=0)
    """Times that copies between a GPU and its host take as long as by the shipped share of the link."""
    host_update_slower: float = Field(default=1.0, gt=0)
    """Times that an update on the host takes as long as by the shipped share of its memory's bandwidth."""

    @property
    def of_host(self) -> str:
        """All but kernels, in words; of offload where its trials told of it."""
        words = [f"a launch {1e6 * self.launch_s:.2g} us", f"Python {self.python_slower:.2g} times as long"]
        offload = {"copies to and from the host": self.copies_slower, "updates there": self.host_update_slower}
        words += [f"{what} {slower:.3g} times" for what, slower in offload.items() if f"{slower:.3g}" != "1"]
        return ", ".join(words)


class CalibratedSteps(Spec):
    """How long measured steps on one model of GPU took beside what the time model expects of them."""

    gpu: str = Field(min_length=1)
    """As the catalogue names it."""
    num_trials: Ranks
    constants: StepConstants | None = None
    """Fitted to the trials; None: the shipped ones."""
    factor: float = Field(gt=0)
    """Measured over expected with these, the geometric mean over the trials."""
    spread: float = Field(ge=0)
    """Of the logarithm of that."""
    covered: tuple[str, ...] = ()
    """What the time model assumes of every one of the trials, so that the factor makes up for it."""
    of_passes: bool = False
    """Whether it is of the passes of ranks that ran alone, whose collectives took no time: of computing alone."""


class Calibration(Spec):
    """A calibration file: the overheads of one machine, from one run, and how long its steps take."""

    calibration_version: Literal[1] = 1
    run_id: str
    versions: dict[str, str] = Field(default_factory=dict)
    """Packages, driver and CUDA that it was measured with."""
    gpus: Annotated[tuple[CalibratedGpu, ...], Field(min_length=1)]
    steps: tuple[CalibratedSteps, ...] = ()


@dataclass(frozen=True)
class Overhead:
    """What one rank's device holds beside torch's memory, and whose figures these are."""

    context_bytes: int
    """CUDA context and loaded kernels."""
    collectives_bytes: int
    """NCCL's kernels and the buffers of the first communicator."""
    another_bytes: int
    """NCCL's buffers of each communicator more."""
    source: str
    """One line: each figure with its status and source."""
    rest_of_process_bytes: int | None = None
    """Host memory of the rank that no tensor holds; None where it was not calibrated."""

    def of_communicators(self, number: int) -> int:
        """NCCL's bytes in a process that has made so many."""
        return self.collectives_bytes + (number - 1) * self.another_bytes if number else 0


def overhead_of(gpu_name: str, world_size: int, calibration: Path | None = None) -> Overhead:
    """The overheads of a rank on the GPU called `gpu_name` (by driver or catalogue) in a world of `world_size` ranks.

    Figures of the file `calibration`, by default the one that ZEROBENCH_CALIBRATION names, come first: the median of
    its ranks, at this world size or the nearest one (never one rank for several or the reverse, because one rank has
    nobody to talk to). What it does not have is taken from the published figures; a communicator after the first takes
    the share of it that they tell.

    Raises UserError: `world_size` below 1, or a calibration file that is not there or not of its form.
    """
    if world_size < 1:
        raise UserError(f"world_size: {world_size} is not a number of ranks; give 1 or more")
    file = calibration or _named_by_environment()
    # The entries for this GPU, those of the nearest world size first, of two as near the larger.
    entries = [entry for entry in load_calibration(file).gpus if _same(entry.gpu, gpu_name)] if file else []
    calibrated = sorted(entries, key=lambda entry: (abs(entry.world_size - world_size), -entry.world_size))
    context, context_source = _context(calibrated, gpu_name, file)
    collectives, share, collectives_source = _collectives(calibrated, gpu_name, world_size, file)
    rest = next((entry.rest_of_process_bytes for entry in calibrated if entry.rest_of_process_bytes), None)
    return Overhead(
        context_bytes=context,
        collectives_bytes=collectives,
        another_bytes=round(share * collectives),
        source=f"CUDA context {format_bytes(context)}, {context_source}; "
        f"NCCL {format_bytes(collectives)}, {collectives_source}",
        rest_of_process_bytes=rest.median if rest else None,
    )


def calibrated_steps(gpu_name: str) -> tuple[CalibratedSteps, str] | None:
    """What the file that ZEROBENCH_CALIBRATION names says of steps on a GPU, and its run; None where it says nothing.

    Raises UserError as `overhead_of`.
    """
    file = _named_by_environment()
    if file is None:
        return None
    calibration = _kept(file, file.stat().st_mtime_ns if file.exists() else 0)
    return next(((step, calibration.run_id) for step in calibration.steps if _same(step.gpu, gpu_name)), None)


@cache
def _kept(file: Path, _written_ns: int) -> Calibration:
    """A search asks for thousands of steps."""
    return load_calibration(file)


def workspace_of(gpu_name: str) -> WorkspaceEntry:
    """The matrix library's workspace on the GPU called `gpu_name`: torch takes one for each thread and stream.

    It is part of what torch's allocator gives out (aten/src/ATen/cuda/CublasHandlePool.cpp), unlike the overheads.
    """
    return _best_for(gpu_name, published().workspaces)


@cache
def published() -> Overheads:
    """The figures that ship with zerobench."""
    content = load_plain(_SHIPPED.read_text(encoding="utf-8"), _SHIPPED.name)
    return Overheads.model_validate(content)


def load_calibration(file: Path) -> Calibration:
    """The calibration that lies in `file`. Raises UserError: it is not there or not of its form."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"calibration: {file}: {error.strerror or error}") from None
    except ValueError:
        raise UserError(f"calibration: {file}: invalid YAML: it is not UTF-8 text") from None
    content = load_plain(text, f"calibration: {file}")
    if not isinstance(content, dict) or "gpus" not in content:
        raise UserError(f"calibration: {file}: not a calibration; write one with: zerobench calibrate RUN --out {file}")
    return validated(Calibration, content, f"calibration: {file}")


def _named_by_environment() -> Path | None:
    named = os.environ.get(CALIBRATION_VARIABLE)
    return Path(named).expanduser() if named else None


def _context(calibrated: Sequence[CalibratedGpu], gpu_name: str, file: Path | None) -> tuple[int, str]:
    for entry in calibrated:
        if entry.context_bytes:
            return entry.context_bytes.median, _measured_here(entry, file)
    published_one = _best_for(gpu_name, published().contexts)
    return published_one.context_bytes, _published(published_one)


def _collectives(
    calibrated: Sequence[CalibratedGpu], gpu_name: str, world_size: int, file: Path | None
) -> tuple[int, float, str]:
    """Of the first communicator; the share of it that another takes; whose figures they are."""
    sizes = {entry.min_ranks for entry in published().collectives if entry.min_ranks <= world_size}
    fitting = [_best_for(gpu_name, [e for e in published().collectives if e.min_ranks == size]) for size in sizes]
    largest = max(fitting, key=lambda entry: entry.collectives_bytes)
    share = (largest.another_bytes or largest.collectives_bytes) / largest.collectives_bytes
    for entry in calibrated:
        if entry.collectives_bytes and (entry.world_size == 1) == (world_size == 1):
            return entry.collectives_bytes.median, share, _measured_here(entry, file)
    return largest.collectives_bytes, share, _published(largest)


def _measured_here(entry: CalibratedGpu, file: Path | None) -> str:
    return f"measured on {counted(entry.num_ranks, 'rank')}, world size {entry.world_size} ({file})"


def _published(entry: _SourcedEntry) -> str:
    return f"{_STATUS_WORDS.get(entry.status, entry.status)} ({entry.source})"


_Entry = TypeVar("_Entry", bound=_SourcedEntry)


def _best_for(gpu_name: str, entries: Sequence[_Entry]) -> _Entry:
    """The entry that names this GPU, else the one that names none."""
    named = (e for e in entries if e.gpus is not None and any(_same(gpu, gpu_name) for gpu in e.gpus))
    return next(named, None) or next(entry for entry in entries if entry.gpus is None)


def _same(name: str, other: str) -> bool:
    """Whether two names mean one model of GPU: by the catalogue, or letter by letter where it knows neither."""
    known, other_gpu = find_gpu(name), find_gpu(other)
    if known is None or other_gpu is None:
        return name.casefold() == other.casefold()
    return known.name == other_gpu.name
