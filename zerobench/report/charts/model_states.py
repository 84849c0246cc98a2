"""Model states of one rank beside the terms of the ZeRO paper (arXiv 1910.02054, figure 1), in the paper's GB."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt

from zerobench.config.derived.roles import Role
from zerobench.report.charts.bar_marks import group_colour
from zerobench.report.charts.bar_rows import BarRows
from zerobench.report.charts.render import Mark, Specification, drawing, layered, mark, reach
from zerobench.report.charts.shown import ending, most_telling
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure
from zerobench.report.tables.model_states import StatesRow, states_rows
from zerobench.report.words import palette
from zerobench.report.words.column_units import DECIMAL, Unit, byte_axis

_KEY = "model-states"
_ROOM = 1.3
"""Factor of the axis beyond the longest bar, for both sums in figures."""
_STATES = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class _Bar:
    """The states of a trial's largest rank; a parameter server's apart from its workers'."""

    trial: TrialFigures
    row: StatesRow

    @property
    def name(self) -> str:
        return f"{self.trial.marked_label}{': server' if self.row.states.role == Role.SERVER else ''}"


def figure(runs: RunFigures) -> Figure | None:
    """Parameters, gradients and optimizer states as bars, the paper's sum as an upright mark; None without any."""
    held = {id(trial): [_Bar(trial, row) for row in states_rows(trial)] for trial in runs.figures}
    known = [trial for trial in runs.figures if held[id(trial)]]
    if not known:
        return None
    shown = most_telling(known, lambda trial: held[id(trial)][0].row.states.total_bytes)
    bars = [bar for trial in shown for bar in held[id(trial)]]
    unit = byte_axis((bar.row.states.total_bytes for bar in bars), DECIMAL)
    has_paper = any(bar.row.paper for bar in bars)
    title = "Model states per rank" + (", beside the ZeRO paper" if has_paper else "")
    caption = (
        "Parameters and optimizer states after a step, gradients before it, on the rank with the most, device and host "
        "together."
        + (" Upright mark: the paper's sum, without padding." if has_paper else "")
        + ending(shown, len(shown), len(known))
    )
    return Figure(_KEY, title, caption, drawing(partial(_chart, bars, unit), _KEY, title), _table(bars, unit))


def _chart(bars: Sequence[_Bar], unit: Unit, *, width: float) -> Specification:
    names, figures = [bar.name for bar in bars], [_sums(bar, unit) for bar in bars]
    rows = BarRows.of(width, names, figures)
    largest = max(max(bar.row.states.total_bytes, bar.row.paper.total_bytes if bar.row.paper else 0) for bar in bars)
    scale = reach(0, unit.of(largest) * rows.room(_ROOM))
    axis = alt.Axis(tickCount=8)  # more stand upon each other where the largest has three digits
    x = alt.X("start:Q", title=f"model states per rank ({unit.name})", scale=scale, axis=axis)
    y = rows.y
    place = {"x": x, "x2": "end:Q", "y": y, "color": group_colour(_STATES), "description": "description:N"}
    parts = [part for bar in bars for part in _parts(bar, unit)]
    drawn = mark("bar", parts, place, stroke="var(--paper)", strokeWidth=0.7)
    above = rows.lines_above() or [_ends(bars, unit, y)]
    return layered([drawn, _papers(bars, unit, y), *above], rows.width, rows.height)


def _parts(bar: _Bar, unit: Unit) -> list[dict[str, Any]]:
    """The three states, end to end; what is not there is left out."""
    parts, end = [], 0
    for group in _STATES:
        size: int = getattr(bar.row.states, f"{group}_bytes")
        if size:
            group_name = palette.CATEGORY_NAMES[group]
            description = f"{bar.name}, {group_name}: {unit.label(size)} {unit.name}"
            place = {"start": unit.of(end), "end": unit.of(end + size)}
            parts.append({"name": bar.name, "group": group_name, "description": description, **place})
        end += size
    return parts


def _ends(bars: Sequence[_Bar], unit: Unit, y: alt.Y) -> Mark:
    """Each sum in figures behind its bar."""
    sums = [
        {"name": bar.name, "at": unit.of(max(bar.row.states.total_bytes, paper or 0)), "text": _sums(bar, unit)}
        for bar in bars
        for paper in [bar.row.paper and bar.row.paper.total_bytes]
    ]
    return mark("text", sums, {"x": "at:Q", "y": y, "text": "text:N"}, align="left", dx=6)


def _papers(bars: Sequence[_Bar], unit: Unit, y: alt.Y) -> Mark:
    """The paper's sum as a mark where the paper speaks of the strategy."""
    marks = [
        {
            "name": bar.name,
            "at": unit.of(paper.total_bytes),
            "description": f"{bar.name}, ZeRO paper: {unit.label(paper.total_bytes)} {unit.name} = {paper.text}",
        }
        for bar in bars
        if (paper := bar.row.paper)
    ]
    place = {"x": "at:Q", "y": y, "description": "description:N"}
    return mark("tick", marks, place, orient="vertical", thickness=2, size=22, color="var(--limit)")


def _sums(bar: _Bar, unit: Unit) -> str:
    paper = f", paper {unit.label(bar.row.paper.total_bytes)}" if bar.row.paper else ""
    return f"{unit.label(bar.row.states.total_bytes)}{paper} {unit.name}"


def _table(bars: Sequence[_Bar], unit: Unit) -> Columns:
    table = {"trial": [bar.name for bar in bars]}
    for group in (*_STATES, "total"):
        name = palette.CATEGORY_NAMES.get(group, group)
        table[f"{name} ({unit.name})"] = [unit.show(getattr(bar.row.states, f"{group}_bytes")) for bar in bars]
        paper = [None if bar.row.paper is None else getattr(bar.row.paper, f"{group}_bytes") for bar in bars]
        table[f"{name} by the paper ({unit.name})"] = [unit.show(size) for size in paper]
    return table | {"terms": [bar.row.paper.text if bar.row.paper else "-" for bar in bars]}
