"""Bars of finished trials: memory by category, like the ZeRO paper's first figure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from zerobench.common.errors import UserError
from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Place
from zerobench.config.trial.trial import TrialSpec
from zerobench.records import store
from zerobench.report.figures.make import trial_figures
from zerobench.report.words import palette
from zerobench.report.words.column_units import show_whole

FULL = "\N{FULL BLOCK}"
_MOST_LABEL, _FIGURES = 30, 28
"""Columns of the longest name, and of the figures after a bar."""
_SHORTEST = 8
"""Shortest bar and shortest name in columns."""


@dataclass(frozen=True)
class EndedTrial:
    """Name, memory and figures of a finished trial."""

    spec: TrialSpec
    groups: Sequence[tuple[str, int]]
    """Peak bytes of the steady step on the device by group of categories; empty without such a peak."""
    figures: str
    """Peak and speed, or the status."""
    capacity_bytes: int | None = None

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.groups)


def ended_trial(run: store.Run, trial_id: str) -> EndedTrial | None:
    """Read a finished trial for the screen; None if its records cannot be read, which the report explains."""
    trial = store.Trial(run, trial_id)
    try:
        figures = trial_figures(trial)
    except (UserError, OSError):
        return None
    peak = figures.peak(Place.DEVICE)
    if not figures.is_whole or peak is None:
        return EndedTrial(trial.spec, (), figures.status.words)
    speed = f"  {show_whole(figures.tokens_per_s)} tokens/s" if figures.tokens_per_s else ""
    groups = [(group, size) for group in palette.CATEGORY_COLOURS if (size := peak.group_bytes(group) or 0) > 0]
    return EndedTrial(trial.spec, groups, f"{format_bytes(peak.total_bytes)}{speed}", figures.capacity_bytes)


def bars(trials: Sequence[EndedTrial], names: Sequence[str], width: int) -> Table:
    """Draw a row per trial on one scale: the device's capacity if a trial comes near it, else the largest peak."""
    label = min(_MOST_LABEL, max(map(len, names)), max(_SHORTEST, width - _FIGURES - _SHORTEST - 4))
    room = max(_SHORTEST, width - label - _FIGURES - 4)
    # One scale for all: a bar is compared with the others, and with the device if it comes near it.
    peaks = [trial.total_bytes for trial in trials]
    capacities = [trial.capacity_bytes for trial in trials]
    largest, capacity = max(peaks, default=0), max((size for size in capacities if size), default=0)
    scale = max(capacity if largest > capacity / 4 else 0, largest, 1)
    table = Table.grid(padding=(0, 1))
    table.add_column(width=label, overflow="fold")
    table.add_column(width=room, no_wrap=True)
    table.add_column(overflow="fold")
    for trial, name in zip(trials, names, strict=True):
        style = "" if trial.groups else "bold red"
        table.add_row(Text(name), stack(trial.groups, scale, room), Text(trial.figures, style))
    return table


def columns_of(num_bytes: int, scale: int, room: int) -> int:
    """Columns for `num_bytes` in a bar of `room` columns that stands for `scale` bytes."""
    return round(num_bytes / scale * room)


def stack(groups: Sequence[tuple[str, int]], scale: int, room: int) -> Text:
    """Draw the parts end to end. The ends are rounded, not the parts, so the bar is exactly as long as the peak."""
    bar, end, drawn = Text(), 0, 0
    for group, size in groups:
        end += size
        columns = columns_of(end, scale, room)
        bar.append(FULL * (columns - drawn), style_of(group))
        drawn = columns
    return bar


def style_of(group: str) -> str:
    """Colour of a group of categories, as on the page."""
    return palette.CATEGORY_COLOURS[group].dark
