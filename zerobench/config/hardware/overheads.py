"""Device memory besides tensors: CUDA context, NCCL, workspaces of the matrix library.

A prediction adds them to the bytes of its tensors. They differ by driver, CUDA and NCCL version, so figures measured on
the user's own GPUs (a calibration file, written by `zerobench calibrate`) precede the published ones in
`overheads.yaml`. Every figure has its source and whether it was measured on this GPU.
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
"""Words shown to users for two of them."""


Ranks = Annotated[int, Field(ge=1)]


class _SourcedEntry(Spec):
    gpus: tuple[str, ...] | None = None
    """Catalogue names of its GPUs; None is every other one."""
    status: Status
    source: str = Field(min_length=1)


class ContextEntry(_SourcedEntry):
    """Published size of the CUDA context."""

    context_bytes: Bytes


class CollectivesEntry(_SourcedEntry):
    """Published size of NCCL's buffers."""

    min_ranks: Ranks
    """Fewest ranks to which it applies."""
    collectives_bytes: Bytes
    """First communicator of a process, with NCCL's kernels."""
    another_bytes: Bytes | None = None
    """Each further communicator; None: as many as the first."""


class WorkspaceEntry(_SourcedEntry):
    """Workspace of the matrix library that torch allocates per thread."""

    workspace_bytes: Bytes


class Overheads(Spec):
    """Published figures (overheads.yaml)."""

    contexts: tuple[ContextEntry, ...]
    collectives: tuple[CollectivesEntry, ...]
    workspaces: tuple[WorkspaceEntry, ...]


class Spread(Spec):
    """Distribution of one figure over the measuring ranks, in bytes."""

    median: int
    min: int
    max: int


class CalibratedGpu(Spec):
    """Measurements of the ranks on one model of GPU at one world size."""

    gpu: str = Field(min_length=1)
    """Name that the driver reports."""
    world_size: Ranks
    num_ranks: Ranks
    """Rank records behind the figures."""
    context_bytes: Spread | None = None
    collectives_bytes: Spread | None = None
    rest_of_process_bytes: Spread | None = None
    """Host memory of a rank besides tensors, in the steady state."""


class StepConstants(Spec):
    """Machine-dependent constants of step time."""

    slower: float = Field(gt=0)
    """Time of the kernels of the passes, relative to the shipped rates."""
    launch_s: float = Field(gt=0)
    """Seconds of the host per kernel launch."""
    python_slower: float = Field(gt=0)
    """Time of the host's Python, relative to the host of the shipped rates."""
    step_s: float = Field(ge=0)
    """Seconds between steps: data, logging."""
    copies_slower: float = Field(default=1.0, gt=0)
    """Time of copies between a GPU and its host, relative to the shipped share of the link."""
    host_update_slower: float = Field(default=1.0, gt=0)
    """Time of an update on the host, relative to the shipped share of its memory's bandwidth."""

    @property
    def host_words(self) -> str:
        """Host constants in words; those of offload only if its trials measured them."""
        words = [f"a launch {1e6 * self.launch_s:.2g} us", f"Python {self.python_slower:.2g} times as long"]
        offload = {"copies to and from the host": self.copies_slower, "updates there": self.host_update_slower}
        words += [f"{what} {slower:.3g} times" for what, slower in offload.items() if f"{slower:.3g}" != "1"]
        return ", ".join(words)


class CalibratedSteps(Spec):
    """Measured step times on one model of GPU, relative to the time model's expectation."""

    gpu: str = Field(min_length=1)
    """Name in the catalogue."""
    num_trials: Ranks
    constants: StepConstants | None = None
    """Fitted to the trials; None: the shipped ones."""
    factor: float = Field(gt=0)
    """Geometric mean over the trials of measured over expected seconds."""
    spread: float = Field(ge=0)
    """Standard deviation of the logarithm of that ratio."""
    covered: tuple[str, ...] = ()
    """Assumptions of the time model that all trials share, for which the factor compensates."""
    of_passes: bool = False
    """Whether it covers only the passes of ranks that ran alone, without time for collectives."""


class Calibration(Spec):
    """A calibration file: overheads and step times of one machine, from one run."""

    calibration_version: Literal[1] = 1
    run_id: str
    versions: dict[str, str] = Field(default_factory=dict)
    """Packages, driver and CUDA at the time of the measurement."""
    gpus: Annotated[tuple[CalibratedGpu, ...], Field(min_length=1)]
    steps: tuple[CalibratedSteps, ...] = ()


@dataclass(frozen=True)
class Overhead:
    """Memory of one rank's device besides torch's own, with the source."""

    context_bytes: int
    """CUDA context and loaded kernels."""
    collectives_bytes: int
    """NCCL's kernels and the buffers of the first communicator."""
    another_bytes: int
    """NCCL's buffers of each further communicator."""
    source: str
    """One line: each figure with its status and source."""
    rest_of_process_bytes: int | None = None
    """Host memory of the rank besides tensors; None if not calibrated."""

    def communicator_bytes(self, number: int) -> int:
        """NCCL's bytes in a process with this number of communicators."""
        return self.collectives_bytes + (number - 1) * self.another_bytes if number else 0


def overhead_of(gpu_name: str, world_size: int, calibration: Path | None = None) -> Overhead:
    """Overheads of a rank on the GPU called `gpu_name` (by driver or catalogue) with `world_size` ranks.

    Figures of the file `calibration`, by default the one that ZEROBENCH_CALIBRATION names, come first: the median of
    its ranks, at this world size or the nearest one (one rank never stands in for several, nor several for one, since
    one rank does not communicate). Missing figures come from the published ones; a further communicator has their share
    of the first.

    Raises UserError: `world_size` below 1, or a calibration file that does not exist or is not valid.
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
    """Step calibration of a GPU in the file that ZEROBENCH_CALIBRATION names, and its run; None if it has none.

    Raises UserError as `overhead_of` does.
    """
    file = _named_by_environment()
    if file is None:
        return None
    calibration = _kept(file, file.stat().st_mtime_ns if file.exists() else 0)
    return next(((step, calibration.run_id) for step in calibration.steps if _same(step.gpu, gpu_name)), None)


@cache
def _kept(file: Path, _written_ns: int) -> Calibration:
    # Cached, since a search reads it for thousands of steps
    return load_calibration(file)


def workspace_of(gpu_name: str) -> WorkspaceEntry:
    """Workspace of the matrix library on the GPU called `gpu_name`: torch allocates one per thread and stream.

    Unlike the overheads, it is part of the memory of torch's allocator (aten/src/ATen/cuda/CublasHandlePool.cpp).
    """
    return _best_for(gpu_name, published().workspaces)


@cache
def published() -> Overheads:
    """Figures that ship with zerobench."""
    content = load_plain(_SHIPPED.read_text(encoding="utf-8"), _SHIPPED.name)
    return Overheads.model_validate(content)


def load_calibration(file: Path) -> Calibration:
    """Load a calibration file. Raises UserError if it does not exist or is not valid."""
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
    """First communicator's bytes, the share of it for another one, and the source."""
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
    """Entry that names this GPU, else the one that names none."""
    named = (e for e in entries if e.gpus is not None and any(_same(gpu, gpu_name) for gpu in e.gpus))
    return next(named, None) or next(entry for entry in entries if entry.gpus is None)


def _same(name: str, other: str) -> bool:
    """Compare two names of GPUs: by the catalogue, or letter by letter if it has neither."""
    known, other_gpu = find_gpu(name), find_gpu(other)
    if known is None or other_gpu is None:
        return name.casefold() == other.casefold()
    return known.name == other_gpu.name
