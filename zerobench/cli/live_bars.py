"""The ZeRO paper's first figure as a sweep draws it: each trial that ended as a bar of its memory by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from zerobench import store
from zerobench.errors import UserError
from zerobench.records import Place
from zerobench.report import palette
from zerobench.report.column_units import show_whole
from zerobench.report.figures.trial import trial_figures
from zerobench.report.trials import LazyTrial
from zerobench.spec.trial import TrialSpec
from zerobench.units import format_bytes

_FULL = "\N{FULL BLOCK}"
_MOST_LABEL, _FIGURES = 30, 28
"""Columns that a name may take, and the figures behind a bar do."""
_SEEN = 0.02
"""Of a whole bar: a group that is smaller everywhere is not in the legend."""


@dataclass(frozen=True)
class EndedTrial:
    """What the screen shows of a trial that ended."""

    spec: TrialSpec
    groups: Sequence[tuple[str, int]]
    """Bytes of the steady step's peak on the device, by group of categories; empty where there is no such peak."""
    figures: str
    """Peak and speed, or how it ended."""
    capacity_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        """The peak."""
        return sum(size for _, size in self.groups)


def ended_trial(run: store.Run, trial_id: str) -> EndedTrial | None:
    """The trial as the screen shows it; None where its records are not to be read, which the report tells."""
    trial = LazyTrial(run, trial_id)
    try:
        figures = trial_figures(trial)
    except (UserError, OSError):
        return None
    summary, peak = figures.summary, figures.peak(Place.DEVICE)
    if not summary.is_whole or peak is None:
        return EndedTrial(trial.spec, (), summary.status.value.replace("_", " "))
    speed = f"  {show_whole(summary.tokens_per_s)} tokens/s" if summary.tokens_per_s else ""
    groups = [(group, size) for group in palette.CATEGORY_COLOURS if (size := peak.group_bytes(group) or 0) > 0]
    return EndedTrial(trial.spec, groups, f"{format_bytes(peak.total_bytes)}{speed}", summary.capacity_bytes)


def bars(trials: Sequence[EndedTrial], names: Sequence[str], now: tuple[int, str] | None, width: int) -> Group:
    """A row for each trial and one for the trial that runs `now` (its memory, and where it is), with their `names`, all
    of one scale: the device's capacity where some trial comes near it, else the largest peak. Below them what the
    colours mean.
    """
    label = min(_MOST_LABEL, max(map(len, names)))
    room = max(8, width - label - _FIGURES - 4)
    scale = _scale(
        [trial.total_bytes for trial in trials] + [now[0] if now else 0], [trial.capacity_bytes for trial in trials]
    )
    table = Table.grid(padding=(0, 1))
    table.add_column(width=label, no_wrap=True, overflow="ellipsis")
    table.add_column(width=room, no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for trial, name in zip(trials, names, strict=False):
        style = "" if trial.groups else "bold red"
        table.add_row(Text(name), _stack(trial.groups, scale, room), Text(trial.figures, style))
    if now:
        running = Text(_FULL * _columns(now[0], scale, room), "dim")
        table.add_row(Text(names[-1], "bold"), running, Text(now[1], "bold"))
    seen = {group for trial in trials for group, size in trial.groups if size > _SEEN * scale}
    legend = [(group, palette.SHORT_NAMES[group]) for group in palette.CATEGORY_COLOURS if group in seen]
    words = Text.assemble(*(part for group, name in legend for part in ((_FULL, _style(group)), f" {name}  ")))
    words.overflow, words.no_wrap = "ellipsis", True
    return Group(table, *([words] if legend else []))


def _scale(peaks: Sequence[int], capacities: Sequence[int | None]) -> int:
    """Bytes of a whole bar."""
    largest, capacity = max(peaks, default=0), max((size for size in capacities if size), default=0)
    return max(capacity if largest > capacity / 4 else 0, largest, 1)


def _columns(num_bytes: int, scale: int, room: int) -> int:
    return round(num_bytes / scale * room)


def _stack(groups: Sequence[tuple[str, int]], scale: int, room: int) -> Text:
    """The parts end to end; the ends are rounded and not the parts, so that the bar is as long as the peak."""
    bar, end, drawn = Text(), 0, 0
    for group, size in groups:
        end += size
        columns = _columns(end, scale, room)
        bar.append(_FULL * (columns - drawn), _style(group))
        drawn = columns
    return bar


def _style(group: str) -> str:
    return palette.CATEGORY_COLOURS[group].dark
