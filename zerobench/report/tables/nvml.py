"""The waterfall: from what NVML says is used on a device down to what each byte is for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zerobench.common.units import format_bytes, format_seconds
from zerobench.records.records import NvmlSummary
from zerobench.records.trials import Trial
from zerobench.report.figures.nvml_view import Waterfall, missed_spike_bytes, nvml_peak_bytes, waterfall
from zerobench.report.tables.model import Column, Line, Mark, Table, figures_of, in_unit
from zerobench.report.words.column_units import Unit, byte_unit

TITLE = "NVML memory breakdown"

LEFT = "used minus all of these: kernels loaded late, further communicators."


@dataclass(frozen=True)
class NvmlRow:
    """A waterfall, and what else NVML says of the same trial."""

    fall: Waterfall
    peak_bytes: int | None
    missed_spike_bytes: int | None
    summaries: Sequence[NvmlSummary]
    """Summaries of the nodes where it sampled."""

    def group_bytes(self, *names: str) -> int | None:
        """Bytes of groups of categories at the peak."""
        return self.fall.allocated.group_bytes(*names) if self.fall.allocated else None

    @property
    def unnamed_bytes(self) -> int:
        """Bytes without a name: the ledger's unattributed ones and what the driver's parts do not explain."""
        return self.fall.unexplained_bytes + (self.group_bytes("unattributed") or 0)


def nvml_rows(trial: Trial) -> Iterator[NvmlRow]:
    """The row of a trial that NVML watched."""
    fall = waterfall(trial)
    if fall is not None:
        sampled = [summary for summary in trial.record.nvml if summary.available]
        yield NvmlRow(fall, nvml_peak_bytes(trial), missed_spike_bytes(trial), sampled)


def nvml_table(lines: Sequence[Line[NvmlRow]], why_not: Sequence[str]) -> Table[NvmlRow]:
    """A row for each trial that NVML watched; `why_not`: why it sampled nothing in others."""
    unit = byte_unit(row.fall.used_bytes for row in figures_of(lines))
    states = ("parameters", "gradients", "optimizer")
    columns: list[Column[NvmlRow]] = [
        Column("rank", lambda row: str(row.fall.rank), narrow="rank"),
        _bytes("used", unit, lambda row: row.fall.used_bytes, "used"),
        _bytes("others", unit, lambda row: row.fall.other_processes_bytes, "others"),
        _bytes("context", unit, lambda row: row.fall.context_bytes, "contxt"),
        _bytes("NCCL", unit, lambda row: row.fall.collectives_bytes, "NCCL"),
        _bytes("slack", unit, lambda row: row.fall.slack_bytes, "slack"),
        *(_group(name, unit, name) for name in states),
        _short("states", unit, lambda row: row.group_bytes(*states)),
        _group("buffers", unit, "buffers", narrow="buffer"),
        _group("rest", unit, "activations", "logits", "temporaries", "small", "process", narrow="rest"),
        _group("unattributed", unit, "unattributed"),
        _bytes("unexplained", unit, lambda row: row.fall.unexplained_bytes),
        _short("unexpl", unit, lambda row: row.unnamed_bytes),
        _bytes("NVML peak", unit, lambda row: row.peak_bytes),
    ]
    caption = (
        "The phase with NVML's highest reading: used = others (other processes) + CUDA context + NCCL + "
        "slack (reserved but unallocated) + tensors at the peak (rest: activations, logits, temporaries, "
        "inputs). "
    )
    missing = [Mark(f"Not sampled in some trials: {reason}") for reason in why_not]
    return Table(
        TITLE,
        f"{caption}unexplained: {LEFT}",
        columns,
        lines,
        [*_sampling(figures_of(lines)), *missing, *_spikes(lines)],
        narrow_caption=f"{caption}unexpl: unexplained, {LEFT}",
        heading=f"{TITLE}, {unit.name}",
    )


def _bytes(name: str, unit: Unit, value: Callable[[NvmlRow], int | None], narrow: str | None = None) -> Column[NvmlRow]:
    return Column(name, in_unit(unit, value), unit.name, name, narrow)


def _group(name: str, unit: Unit, *groups: str, narrow: str | None = None) -> Column[NvmlRow]:
    return _bytes(name, unit, lambda row: row.group_bytes(*groups), narrow)


def _short(name: str, unit: Unit, value: Callable[[NvmlRow], int | None]) -> Column[NvmlRow]:
    """Column that replaces several in 80 columns."""
    return Column("", in_unit(unit, value), wide=None, narrow=name, is_for_files=False)


def _sampling(rows: Sequence[NvmlRow]) -> list[str]:
    """Sampling of the peak, at its worst."""
    summaries = [summary for row in rows for summary in row.summaries]
    gaps = [summary.largest_gap_s for summary in summaries if summary.largest_gap_s is not None]
    intervals = [summary.interval_s for summary in summaries if summary.interval_s is not None]
    if not gaps or not intervals:
        return []
    every, gap = format_seconds(max(intervals)), format_seconds(max(gaps))
    return [f"NVML sampling interval: {every}; largest gap: {gap}."]


def _spikes(lines: Sequence[Line[NvmlRow]]) -> list[Mark]:
    missed = [(line.trial.label, line.figures.missed_spike_bytes) for line in lines]
    return [
        Mark(f"{label}: NVML's peak is {format_bytes(size)} below the allocator's: a spike between samples")
        for label, size in missed
        if size is not None
    ]
