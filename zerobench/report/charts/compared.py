"""Two charts of ways to train beside one process: speed-up, and model states of a rank with the server's apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from zerobench.report.charts import palette
from zerobench.report.charts.render import WIDTH, Mark, Specification, data, layered, svg
from zerobench.report.charts.words import ByteAxis, byte_axis, counted
from zerobench.report.compared.rows import Compared, is_comparison
from zerobench.report.figure import Columns, Figure
from zerobench.report.figures.runs import RunFigures
from zerobench.units import format_bytes, format_seconds

_ROW_HEIGHT, _LETTER, _MOST_ROWS = 24, 6.6, 40
_STATES = ("parameters", "gradients", "optimizer")


def speed_figure(frames: RunFigures) -> Figure | None:
    """Speed-up over the single process, beside what n ranks would bring; None where nothing is compared."""
    rows = [row for row in _shown(frames) if row.speed_up is not None and not row.is_reference]
    if not rows:
        return None
    key, title = "speed-up", "Speed-up over one process with the same global batch"
    caption = (
        "Single-process step time over the trial's (medians). Upright mark: linear speed-up, servers included."
        + _left_out(frames)
    )
    return Figure(key, title, caption, svg(_speed_chart(rows), key, title), _speed_table(rows))


def states_figure(frames: RunFigures) -> Figure | None:
    """Model states of one rank, stacked, a server's beside its workers'; None where nothing is compared."""
    rows = [row for row in _shown(frames) if row.figures.states is not None]
    if not rows:
        return None
    key, title = "model-states-compared", "Model states per rank"
    unit = byte_axis(row.figures.states_bytes or 0 for row in rows)
    caption = (
        "Parameters and optimizer states after a step, gradients before it, on the rank with the most. Parameter"
        " servers apart from their workers." + _left_out(frames)
    )
    return Figure(key, title, caption, svg(_states_chart(rows, unit), key, title), _states_table(rows, unit))


def _shown(frames: RunFigures) -> Sequence[Compared]:
    return frames.comparison[:_MOST_ROWS] if is_comparison(frames.comparison) else ()


def _left_out(frames: RunFigures) -> str:
    known = len(frames.comparison)
    return "" if known <= _MOST_ROWS else f" The first {_MOST_ROWS} of {known} trials."


def _name(row: Compared) -> str:
    """The label as other charts write it, with the side where it is the server's."""
    return f"{'' if row.is_believed else '! '}{row.label}{': server' if row.figures.is_server else ''}"


def _plot_width(names: Sequence[str]) -> float:
    return WIDTH - min(340.0, _LETTER * max(map(len, names))) - 70


def _speed_chart(rows: Sequence[Compared]) -> Specification:
    names = [_name(row) for row in rows]
    points = [
        {
            "name": _name(row),
            "speed": row.speed_up,
            "ideal": row.spec.world_size,
            "colour": palette.strategy_colour(row.spec.strategy),
            "text": f"{row.speed_up or 0:.2f} x",
            "said": f"{_name(row)}: {row.speed_up or 0:.2f} x on {counted(row.spec.world_size, 'rank')},"
            f" {format_seconds(row.figures.step_s)} a step",
        }
        for row in rows
    ]
    top = max(max(row.spec.world_size, row.speed_up or 0) for row in rows) * 1.12
    x = alt.X("speed:Q", title="speed-up over one process", scale=alt.Scale(domain=[0, top], nice=False))
    y = alt.Y("name:N", title=None, sort=None, scale=alt.Scale(domain=names, paddingInner=0.28))
    bars = alt.Chart(data(points)).mark_bar(stroke="var(--ink)", strokeWidth=0.6)
    ideal = alt.Chart(data(points)).mark_tick(
        orient="vertical", thickness=2, size=_ROW_HEIGHT - 6, color="var(--limit)"
    )
    words = alt.Chart(data(points)).mark_text(align="left", dx=5)
    layers: list[Mark] = [
        bars.encode(x=x, y=y, fill=alt.Fill("colour:N", scale=None), description=alt.Description("said:N")),
        ideal.encode(x=alt.X("ideal:Q"), y=y),
        words.encode(x=alt.X("speed:Q"), y=y, text=alt.Text("text:N")),
    ]
    return layered(layers, _plot_width(names), _ROW_HEIGHT * len(names))


def _states_chart(rows: Sequence[Compared], unit: ByteAxis) -> Specification:
    names = [_name(row) for row in rows]
    widest = max(unit.of(row.figures.states_bytes or 0) for row in rows) * 1.14
    x = alt.X("start:Q", title=f"model states per rank ({unit.name})", scale=alt.Scale(domain=[0, widest], nice=False))
    y = alt.Y("name:N", title=None, sort=None, scale=alt.Scale(domain=names, paddingInner=0.28))
    colour = alt.Color(
        "group:N",
        title=None,
        scale=alt.Scale(
            domain=[palette.CATEGORY_NAMES[group] for group in _STATES],
            range=[palette.category_colour(group) for group in _STATES],
        ),
        legend=alt.Legend(symbolType="square", offset=24),
    )
    parts = alt.Chart(data([part for row in rows for part in _parts(row, unit)])).mark_bar(
        stroke="var(--paper)", strokeWidth=0.7
    )
    totals = [
        {
            "name": _name(row),
            "at": unit.of(row.figures.states_bytes or 0),
            "text": format_bytes(row.figures.states_bytes),
        }
        for row in rows
    ]
    words = alt.Chart(data(totals)).mark_text(align="left", dx=6)
    layers: list[Mark] = [
        parts.encode(x=x, x2=alt.X2("end:Q"), y=y, color=colour, description=alt.Description("said:N")),
        words.encode(x=alt.X("at:Q"), y=y, text=alt.Text("text:N")),
    ]
    return layered(layers, _plot_width(names), _ROW_HEIGHT * len(names))


def _parts(row: Compared, unit: ByteAxis) -> list[dict[str, Any]]:
    """The three states of a row, one behind the other; what is not there is left out."""
    found, end = [], 0
    for group in _STATES:
        size: int = getattr(row.figures.states, f"{group}_bytes")
        if size:
            said = f"{_name(row)}, {palette.CATEGORY_NAMES[group]}: {format_bytes(size)}"
            place = {"start": unit.of(end), "end": unit.of(end + size)}
            found.append({"name": _name(row), "group": palette.CATEGORY_NAMES[group], "said": said, **place})
        end += size
    return found


def _speed_table(rows: Sequence[Compared]) -> Columns:
    return {
        "trial": [_name(row) for row in rows],
        "ranks": [f"{row.spec.world_size:,}" for row in rows],
        "step": [format_seconds(row.figures.step_s) for row in rows],
        "speed-up": [f"{row.speed_up or 0:.2f}" for row in rows],
        "efficiency (%)": [f"{100 * (row.efficiency or 0):.0f}" for row in rows],
    }


def _states_table(rows: Sequence[Compared], unit: ByteAxis) -> Columns:
    table = {"trial": [_name(row) for row in rows]}
    for group in _STATES:
        sizes = [getattr(row.figures.states, f"{group}_bytes") for row in rows]
        table[f"{palette.CATEGORY_NAMES[group]} ({unit.name})"] = [unit.show(size) for size in sizes]
    table[f"all ({unit.name})"] = [unit.show(row.figures.states_bytes) for row in rows]
    return table
