"""Speed-up of ways to train over one process."""

from collections.abc import Sequence
from functools import partial

import altair as alt

from zerobench.common.units import counted, format_seconds
from zerobench.report.charts.bar_rows import BAR_HEIGHT, BarRows
from zerobench.report.charts.render import Specification, drawing, layered, mark, reach
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.strategies.rows import ComparedSide, is_comparison
from zerobench.report.tables.figure import Columns, Figure
from zerobench.report.words import palette

_MOST_ROWS = 40


def speed_figure(frames: RunFigures) -> Figure | None:
    """Speed-up over the single process, beside what n ranks would bring; None where nothing is compared."""
    shown = frames.comparison[:_MOST_ROWS]
    rows = [row for row in shown if row.speed_up is not None and not row.is_reference]
    if not rows or not is_comparison(frames.comparison):
        return None
    key, title = "speed-up", "Speed-up over one process with the same global batch"
    known = len(frames.comparison)
    caption = (
        "Single-process step time divided by the trial's (medians). Vertical mark: linear speed-up, "
        "servers counted as ranks."
    )
    if (known := len(frames.comparison)) > _MOST_ROWS:
        caption += f" The first {_MOST_ROWS} of {known} trials."
    return Figure(key, title, caption, drawing(partial(_speed_chart, rows), key, title), _speed_table(rows))


def _name(row: ComparedSide) -> str:
    """The label as other charts write it, with the side where it is the server's."""
    return f"{'' if row.is_believed else '! '}{row.label}{': server' if row.figures.is_server else ''}"


def _speed_chart(rows: Sequence[ComparedSide], *, width: float) -> Specification:
    names, speeds = [_name(row) for row in rows], [f"{row.speed_up or 0:.2f} x" for row in rows]
    places = BarRows.of(width, names, speeds, beside=70)
    points = [
        {
            "name": _name(row),
            "speed": row.speed_up,
            "ideal": row.spec.world_size,
            "colour": palette.strategy_colour(row.spec.strategy),
            "text": speed,
            "description": f"{_name(row)}: {speed} on {counted(row.spec.world_size, 'rank')},"
            f" {format_seconds(row.figures.step_s)} a step",
        }
        for row, speed in zip(rows, speeds, strict=True)
    ]
    top = max(max(row.spec.world_size, row.speed_up or 0) for row in rows) * places.room(1.12)
    x = alt.X("speed:Q", title="speed-up over one process", scale=reach(0, top))
    y, fill = places.y, alt.Fill("colour:N", scale=None)
    bar = {"x": x, "y": y, "fill": fill, "description": "description:N"}
    ideal = {"orient": "vertical", "thickness": 2, "size": BAR_HEIGHT, "color": "var(--limit)"}
    layers = [
        mark("bar", points, bar, stroke="var(--ink)", strokeWidth=0.6),
        mark("tick", points, {"x": "ideal:Q", "y": y}, **ideal),
    ]
    words = places.lines_above() or [
        mark("text", points, {"x": "speed:Q", "y": y, "text": "text:N"}, align="left", dx=5)
    ]
    return layered([*layers, *words], places.width, places.height)


def _speed_table(rows: Sequence[ComparedSide]) -> Columns:
    return {
        "trial": [_name(row) for row in rows],
        "ranks": [f"{row.spec.world_size:,}" for row in rows],
        "step": [format_seconds(row.figures.step_s) for row in rows],
        "speed-up": [f"{row.speed_up or 0:.2f}" for row in rows],
        "efficiency (%)": [f"{100 * (row.efficiency or 0):.0f}" for row in rows],
    }
