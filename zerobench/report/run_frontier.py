"""The table of a measured frontier: the most that fits, as predicted and as found by trying, and what ends it.

A try fits where its trial completed within the limit. On a GPU the limit is the GPU: running out of memory is the
answer, and no figure is held against another. Where a capacity is given (CPU ranks have no other bound), the device's
peak is held against it: what tensors take on the rank that takes most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from zerobench.records import Status
from zerobench.report.column_units import MISSING, byte_unit, plain, show_number, show_percent, show_whole
from zerobench.report.memory_view import device_peak_bytes
from zerobench.report.speed import Speed, speed_of
from zerobench.report.terminal.layout import Section
from zerobench.report.trials import Trial, completed, num_params
from zerobench.spec.frontier import Frontier, Try
from zerobench.spec.frontier_axes import FrontierAxis
from zerobench.units import format_bytes, format_count

HOST_MEMORY_RULE = "host_memory"
"""The rule that refuses states which host memory cannot hold: a result, like running out of it."""

ROOMY = 100
"""From this many columns on, those of the table stand apart."""

NARROW = 80
"""Below it, headers are broken."""

SPARED = ("TFLOP/s", "room, %", "tokens/s")
"""Columns that a narrow terminal goes without, the first of them first."""


@dataclass(frozen=True)
class Limit:
    """What one rank may take of its device."""

    capacity_bytes: int
    is_given: bool
    """By the user; else it is all of the GPU's memory."""

    def needed_bytes(self, trial: Trial) -> int | None:
        """What a completed trial takes, to hold against the capacity; None where nobody watched.

        The tensors' peak; against a whole GPU with CUDA context and NCCL, and never more than there is, since the
        trial did complete. What the allocator keeps beyond the tensors it gives back before it runs out of memory
        (c10/cuda/CUDACachingAllocator.cpp, malloc), and is not in it.
        """
        peak_bytes = device_peak_bytes(trial)
        if peak_bytes is None or self.is_given:
            return peak_bytes
        outside = [rank.context for rank in trial.ranks if rank.context is not None]
        peak_bytes += max(((one.context_bytes or 0) + (one.collectives_bytes or 0) for one in outside), default=0)
        return min(peak_bytes, self.capacity_bytes) if trial.spec.evidence.needs_device else peak_bytes


@dataclass(frozen=True)
class RunFrontierRow:
    """What was found of one cell."""

    label: str
    predicted: Frontier | None
    """None where the cell was not predicted, or its prediction failed."""
    measured: Frontier | None
    """None where the search was given up."""
    largest: Trial | None
    """The trial of the largest that fits; None where nothing does."""
    too_large: Trial | None
    """The trial of the least that was seen not to fit."""

    @property
    def speed(self) -> Speed | None:
        """How fast the largest that fits trains; of a rank alone of many without what it would wait for others."""
        return None if self.largest is None else speed_of(self.largest)


def ran_out(trial: Trial) -> bool:
    """Whether memory ended the trial, so that it needs more than there is and nobody knows how much."""
    record = trial.record
    full = {Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY}
    return record.status in full or (record.status is Status.SKIPPED and record.rule == HOST_MEMORY_RULE)


def run_frontier_section(
    axis: FrontierAxis, rows: Sequence[RunFrontierRow], limit: Limit, device: str | None, width: int
) -> Section:
    """Predicted and measured side by side; `device` names the GPU that ranks compute on, None for CPU ranks."""
    unit = byte_unit([_needed(one) for one in rows])
    columns: Columns = {
        "predicted": lambda one: _edge(one.predicted, axis),
        "measured": lambda one: _edge(one.measured, axis),
        "error": _error,
        "parameters": _parameters if axis.name == "model" else lambda _: MISSING,
        "too large": lambda one: MISSING if one.measured is None else _value(one.measured.too_large, axis),
        "needs": lambda one: unit.show(_needed(one)),
        "room, %": lambda one: show_percent(_room(one, limit)),
        "tokens/s": lambda one: show_whole(one.speed.tokens_per_s if one.speed else None),
        "TFLOP/s": lambda one: show_number(one.speed.tflops_per_gpu if one.speed else None),
        "tries": _num_tries,
        "ends": ends,
    }
    grid = _widest(_told(columns, rows), rows, width)
    title = f"Measured: the largest {axis.name.replace('-', ' ')} that fits, in {words_of(axis, device)}"
    speed = ", ".join(name for column in grid.columns if (name := str(column.header)) in {"tokens/s", "TFLOP/s"})
    return Section(title, _caption(limit, device or "the CPU", unit.name, speed), grid)


Columns = dict[str, Callable[[RunFrontierRow], str]]


def _told(columns: Columns, rows: Sequence[RunFrontierRow]) -> Columns:
    """`columns` without those that may be spared and say nothing."""
    return {
        name: cell
        for name, cell in columns.items()
        if name not in {*SPARED, "parameters"} or any(cell(one) != MISSING for one in rows)
    }


def _widest(columns: Columns, rows: Sequence[RunFrontierRow], width: int) -> Table:
    """The table with as many of its columns as there is room for."""
    spared = iter(SPARED)
    grid = _grid(columns, rows, width)
    unbounded = Console(width=10_000)
    while Measurement.get(unbounded, unbounded.options, grid).maximum > width and (name := next(spared, None)):
        columns = {header: cell for header, cell in columns.items() if header != name}
        grid = _grid(columns, rows, width)
    return grid


def _grid(columns: Columns, rows: Sequence[RunFrontierRow], width: int) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, int(width >= ROOMY), 0, 0))
    grid.add_column(Text("trial"), overflow="fold", min_width=5)
    for header in columns:
        justify: Literal["left", "right"] = "left" if header == "ends" else "right"
        grid.add_column(Text(header), justify=justify, overflow="fold", no_wrap=width >= NARROW)
    for one in rows:
        grid.add_row(Text(plain(one.label)), *(Text(cell(one)) for cell in columns.values()))
    return grid


def words_of(axis: FrontierAxis, device: str | None) -> str:
    """What the axis counts; where there is no GPU, it is ranks that have it."""
    return axis.words if device else axis.words.replace("a GPU", "a rank")


def _caption(limit: Limit, device: str, unit: str, speed: str) -> str:
    size = format_bytes(limit.capacity_bytes)
    if limit.is_given:
        fits = f"It fits where a rank's tensors take at most {size} of its device ({device}) at their peak"
        needs = f"needs: that peak of the largest, {unit}"
    else:
        fits = f"It fits where its trial completes on {device} of {size}"
        needs = f"needs: tensors, CUDA context and NCCL of the largest, {unit}"
    return (
        f"{fits}; each try is a trial in fresh processes. predicted: by simulation, where the search begins. too "
        f"large: the least seen not to fit. {needs}. ends: what the too large one exceeds; limit: nothing larger is "
        "tried." + (f" {speed}: of the largest." if speed else "")
    )


def _edge(found: Frontier | None, axis: FrontierAxis) -> str:
    if found is None:
        return MISSING
    return "none" if found.largest is None else _value(found.largest, axis)


def _value(one: Try | None, axis: FrontierAxis) -> str:
    return MISSING if one is None else show_whole(one.value * axis.unit)


def _error(one: RunFrontierRow) -> str:
    """How far the prediction is off, where both found something that fits."""
    known = [found.largest.value for found in (one.predicted, one.measured) if found and found.largest]
    return show_percent(known[0] / known[1] - 1, signed=True) if len(known) == 2 else MISSING


def _parameters(one: RunFrontierRow) -> str:
    return MISSING if one.largest is None else format_count(num_params(one.largest))


def _needed(one: RunFrontierRow) -> int | None:
    return None if one.measured is None or one.measured.largest is None else one.measured.largest.peak_bytes


def _room(one: RunFrontierRow, limit: Limit) -> float | None:
    needed_bytes = _needed(one)
    return None if needed_bytes is None else 1 - needed_bytes / limit.capacity_bytes


def _num_tries(one: RunFrontierRow) -> str:
    return MISSING if one.measured is None else str(len(one.measured.tries))


def ends(one: RunFrontierRow) -> str:
    """What keeps anything larger from fitting."""
    if one.measured is None:
        return "given up"
    if one.too_large is None:
        return "limit"
    if completed(one.too_large):
        return "capacity"
    status = one.too_large.record.status
    return "host memory" if status is Status.SKIPPED else status.value.removeprefix("out_of_").replace("_", " ")
