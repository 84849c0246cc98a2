"""Throughput against memory, those trials marked that none beats in both: what one chooses from.

Of predicted trials the throughput is the expected one, with its interval.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import altair as alt

from zerobench.common.grouped import grouped
from zerobench.common.units import format_bytes
from zerobench.report.charts import intervals
from zerobench.report.charts.marks import SIDES, Point, point, points, strategies_sentence
from zerobench.report.charts.render import (
    Mark,
    Specification,
    arranged,
    drawing,
    haloed,
    in_columns,
    layered,
    mark,
    reach,
)
from zerobench.report.charts.series import Place
from zerobench.report.charts.shown import whole
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words.column_units import Unit, byte_axis, plain

_KEY = "throughput-against-memory"
_MOST_PANELS = 4
"""Models that have a plot each: those with most trials."""
_LETTER = 6.2
"""About the width of a letter of a name."""
_CROWD = 60
"""More points than this leave no room for names."""
_RADIUS, _RAISED = 8, 9
"""Pixels of a point, and how far above its middle its name stands."""


def figure(runs: RunFigures) -> Figure | None:
    """Tokens per second and GPU over the device's peak, a plot for each model; None where no trial has a speed."""
    known = [
        (trial, peak, rate)
        for trial in whole(runs.figures)
        for peak, rate in [(trial.device_peak_bytes, trial.rate)]
        if peak is not None and rate is not None
    ]
    if not known:
        return None
    unit = byte_axis(peak for _, peak, _ in known)
    # x: the device's peak, in the chart's unit; y: tokens per second and GPU.
    placed = [Place(trial, unit.of(peak), rate.tokens_per_s, rate.interval) for trial, peak, rate in known]
    groups = grouped(placed, lambda place: _work(place.trial))
    plots = [on_front(places) for places in groups.values()]
    # A plot is called by its model, and by what tells it from the others.
    differing = [at for at, parts in enumerate(zip(*groups, strict=True)) if at == 0 or len(set(parts)) > 1]
    names = {id(plot): plain(", ".join(work[at] for at in differing)) for work, plot in zip(groups, plots, strict=True)}
    panels = sorted(plots, key=lambda places: -len(places))[:_MOST_PANELS]
    chart = partial(_chart, panels, [names[id(panel)] for panel in panels], unit)
    title, order = "Throughput against memory", {id(trial): place for place, (trial, _, _) in enumerate(known)}
    places = sorted((place for plot in plots for place in plot), key=lambda place: order[id(place.trial)])
    return Figure(_KEY, title, _caption(places, len(plots)), drawing(chart, _KEY, title), _table(places, unit))


def _chart(panels: Sequence[Sequence[Place]], names: Sequence[str], unit: Unit, *, width: float) -> Specification:
    columns, each = in_columns(width, len(panels))
    alone = len(panels) == 1
    rows = [[point(place.trial, place.x, place.y, _description(place)) for place in panel] for panel in panels]
    among = [row for panel in rows for row in panel]
    drawn = [
        _plot(panel, rows_of_panel, among, None if alone else name, unit, each, is_titled=at % columns == 0)
        for at, (panel, rows_of_panel, name) in enumerate(zip(panels, rows, names, strict=True))
    ]
    return drawn[0] if alone else arranged(drawn, columns, 26)


def _work(trial: TrialFigures) -> tuple[str, ...]:
    """Work that compared trials have in common, as a plot's name."""
    spec = trial.spec
    return spec.model.name, f"sequence length {spec.sequence_length}", str(trial.device_name), trial.run_id


def on_front(places: Sequence[Place]) -> list[Place]:
    """Each with whether no other believed one is at least as fast with no more memory, and better in one (Pareto)."""
    front: set[tuple[float, float]] = set()
    fastest = float("-inf")
    believed = [place for place in places if place.trial.is_believed]
    for place in sorted(believed, key=lambda candidate: (candidate.x, -candidate.y)):
        if place.y > fastest:
            front.add((place.x, place.y))
            fastest = place.y
    # Two trials that tie in both are both on the front.
    return [replace(place, is_best=place.trial.is_believed and (place.x, place.y) in front) for place in places]


def _plot(
    places: Sequence[Place],
    rows: Sequence[Point],
    among: Sequence[Point],
    name: str | None,
    unit: Unit,
    width: float,
    *,
    is_titled: bool,
) -> Specification:
    y_title = "tokens/s per GPU" if is_titled else None
    top = max((place.interval or (0.0, place.y))[1] for place in places) * 1.12
    x_top = max(place.x for place in places) * 1.12
    x = alt.X("x:Q", title=f"peak memory per device ({unit.name})", scale=reach(0, x_top))
    y = alt.Y("y:Q", title=y_title, axis=alt.Axis(format="~s"), scale=reach(0, top))
    height = 330 if name is None else 250
    front = sorted((place for place in places if place.is_best), key=lambda place: place.x)
    edge = [{"x": place.x, "y": place.y} for place in front]  # at each memory the fastest that fits
    style = {"color": "var(--ink)", "strokeWidth": 1.3, "strokeDash": [2, 2], "aria": False}
    layers = [
        *intervals.bars([(place.x, place.interval) for place in places if place.interval], x, y),
        mark("line", edge, {"x": x, "y": y}, interpolate="step-after", **style),
        *points(rows, x, y, among=among),
        *_names(front, places, x, y, (x_top, top), (width, height)),
    ]
    return layered(layers, width, height, name)


def _description(place: Place) -> str:
    best, peak = ", on the front" if place.is_best else "", format_bytes(place.trial.device_peak_bytes)
    return f"{place.trial.marked_label}: {place.y:,.0f} tokens/s per GPU{intervals.text(place.interval)}, {peak}{best}"


def _names(
    front: Sequence[Place],
    places: Sequence[Place],
    x: alt.X,
    y: alt.Y,
    tops: tuple[float, float],
    size: tuple[float, float],
) -> list[Mark]:
    """Names beside the front's points, on the right or else the left; those left out for which neither has room.

    Among very many points only the fastest and the leanest are named, over whatever is there.
    """
    is_crowded = len(places) > _CROWD
    # In pixels from the left and from the foot.
    middles = {id(place): (place.x / tops[0] * size[0], place.y / tops[1] * size[1]) for place in places}
    covered = [] if is_crowded else middles.values()
    taken = [(across - _RADIUS, across + _RADIUS, up - _RADIUS, up + _RADIUS) for across, up in covered]
    named: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    ordered = sorted(front, key=lambda place: -place.y)
    for place in [ordered[0], ordered[-1]] if is_crowded and len(ordered) > 1 else ordered:
        across, up = middles[id(place)]
        name = place.trial.marked_label
        length = _LETTER * len(name)
        for _, dx, is_right in SIDES:
            start = across + dx - (0 if is_right else length)
            box = start, start + length, up + _RAISED - 6, up + _RAISED + 6
            if 0 <= start <= size[0] - length and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                named[is_right].append({"x": place.x, "y": place.y, "text": name})
                break
    text = {"x": x, "y": y, "text": "text:N"}
    return [
        mark
        for align, dx, is_right in SIDES
        for mark in haloed(named[is_right], text, align=align, dx=dx, dy=-_RAISED, fontSize=11)
    ]


_Box = tuple[float, float, float, float]
"""Left, right, lower and upper end, in pixels."""


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def _caption(places: Sequence[Place], number: int) -> str:
    text = (
        f"{strategies_sentence([place.trial for place in places])} Dotted: Pareto front for each model, "
        "device and sequence length. Memory: largest peak, including start-up."
        + intervals.sentence([place.trial for place in places], "bars")
    )
    if not all(place.trial.is_believed for place in places):
        text += " Trials marked `!` (losses or gradient norms differ from the reference) are excluded from the front."
    if number > _MOST_PANELS:
        text += f" {_MOST_PANELS} of {number} panels, those with most trials."
    return text


def _table(places: Sequence[Place], unit: Unit) -> Columns:
    expected = any(place.interval for place in places)
    rows = [
        {
            "trial": place.trial.marked_label,
            "model": plain(place.trial.spec.model.name),
            f"peak ({unit.name})": unit.show(place.trial.device_peak_bytes),
            "tokens/s per GPU": f"{place.y:,.1f}",
            **(dict(zip(("low", "high"), ends or ("-", "-"), strict=True)) if expected else {}),
            "on the front": "yes" if place.is_best else "",
        }
        for place in sorted(places, key=lambda place: (place.trial.spec.model.name, place.x))
        for ends in [place.interval and [f"{end:,.1f}" for end in place.interval]]
    ]
    return columns_of_named(rows)
