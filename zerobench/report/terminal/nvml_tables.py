"""The terminal's waterfall: from what NVML says is used on a device down to what each byte is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from zerobench.report.column_units import Unit, byte_unit, plain
from zerobench.report.nvml_view import Waterfall, missed_spike_bytes, nvml_peak_bytes, waterfall, why_no_nvml
from zerobench.report.terminal.layout import WIDE, Column, Section, Shown, listed, mark, table
from zerobench.units import format_bytes, format_seconds


class _Row:
    """A waterfall, and the sampled peak of the same trial."""

    def __init__(self, fall: Waterfall, peak_bytes: int | None) -> None:
        self.fall = fall
        self.peak_bytes = peak_bytes

    def group_bytes(self, *names: str) -> int | None:
        return self.fall.allocated.group_bytes(*names) if self.fall.allocated else None

    @property
    def unnamed_bytes(self) -> int:
        """What nobody names: the ledger's unattributed bytes and what the driver's parts do not explain."""
        return self.fall.unexplained_bytes + (self.group_bytes("unattributed") or 0)


def nvml_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """The waterfall of the trials that NVML watched; without any, one line that says why."""
    ran = [one for one in shown if one.trial.ranks]
    falls = [(one, waterfall(one.trial)) for one in ran]
    rows = [(one, _Row(fall, nvml_peak_bytes(one.trial))) for one, fall in falls if fall is not None]
    reasons = why_no_nvml(one.trial for one in ran)
    if rows:
        yield _waterfall(rows, [f"Not sampled in some trials: {reason}" for reason in reasons], width)
    elif ran:
        why = listed(reasons) or "the ranks ran on no NVIDIA device"
        yield Section("NVML", f"Nothing was read from the driver: {plain(why)}.")


def _group(unit: Unit, *names: str) -> Callable[[_Row], str]:
    return lambda row: unit.show(row.group_bytes(*names))


def _fall(unit: Unit, name: str) -> Callable[[_Row], str]:
    return lambda row: unit.show(getattr(row.fall, name))


def _waterfall(rows: list[tuple[Shown, _Row]], missing: Sequence[str], width: int) -> Section:
    unit = byte_unit(row.fall.used_bytes for _, row in rows)
    columns = [
        Column[_Row]("rank", "rank", lambda row: str(row.fall.rank)),
        Column("used", "used", _fall(unit, "used_bytes")),
        Column("others", "others", _fall(unit, "other_processes_bytes")),
        Column("context", "contxt", _fall(unit, "context_bytes")),
        Column("NCCL", "NCCL", _fall(unit, "collectives_bytes")),
        Column("slack", "slack", _fall(unit, "slack_bytes")),
        Column("parameters", None, _group(unit, "parameters")),
        Column("gradients", None, _group(unit, "gradients")),
        Column("optimizer", None, _group(unit, "optimizer")),
        Column(None, "states", _group(unit, "parameters", "gradients", "optimizer")),
        Column("buffers", "buffer", _group(unit, "buffers")),
        Column("rest", "rest", _group(unit, "activations", "logits", "temporaries", "small", "process")),
        Column("unattributed", None, _group(unit, "unattributed")),
        Column[_Row]("unexplained", None, lambda row: unit.show(row.fall.unexplained_bytes)),
        Column[_Row](None, "unexpl", lambda row: unit.show(row.unnamed_bytes)),
        Column[_Row]("NVML peak", None, lambda row: unit.show(row.peak_bytes)),
    ]
    named = "unexplained: used less all of these." if width >= WIDE else "unexpl: what none of these explains."
    return Section(
        f"From NVML's used memory down to tensors, {unit.name}",
        "The phase where NVML read most: used = others (other processes) + CUDA context + NCCL + slack (reserved by "
        f"torch, never in a tensor) + tensors at the peak (rest: activations, logits, temporaries, inputs). {named}",
        table(columns, rows, width),
        [*_sampling(rows), *map(mark, missing), *_spikes(rows)],
    )


def _sampling(rows: Sequence[tuple[Shown, _Row]]) -> list[Text]:
    """How the peak was sampled, at its worst."""
    summaries = [summary for one, _ in rows for summary in one.trial.record.nvml if summary.available]
    gaps = [summary.largest_gap_s for summary in summaries if summary.largest_gap_s is not None]
    intervals = [summary.interval_s for summary in summaries if summary.interval_s is not None]
    if not gaps or not intervals:
        return []
    every, gap = format_seconds(max(intervals)), format_seconds(max(gaps))
    return [Text(f"NVML was sampled every {every}; the largest gap between two samples was {gap}.", style="dim")]


def _spikes(rows: Sequence[tuple[Shown, _Row]]) -> list[Text]:
    missed = [(one, missed_spike_bytes(one.trial)) for one, _ in rows]
    return [
        mark(f"{one.label}: NVML's peak lies {format_bytes(size)} under the allocator's: a spike fell between samples")
        for one, size in missed
        if size is not None
    ]
