"""Trials along one axis (model size, ranks): a line joins trials that are alike in all else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

import altair as alt

from zerobench.report.charts import intervals
from zerobench.report.charts.marks import point, points, strategy_stroke
from zerobench.report.charts.render import (
    Mark,
    Specification,
    arranged,
    in_columns,
    is_narrow,
    layered,
    mark,
    reach,
    wrapped,
)
from zerobench.report.charts.series import Place, Series

_PLOT_HEIGHT, _LABEL_GAP = 340, 13
_NAMES = 195
"""Width of the names of lines beside a plot."""
_LETTERS = ascii_lowercase
"""Names of lines at their ends where the full names are in a list below."""
_LETTER_ROOM = 16
"""Width of such a letter."""


def chart(
    lines: Sequence[Series],
    say: Callable[[Place], str],
    x_axis: alt.Axis,
    y_axis: alt.Axis,
    *,
    width: float,
    y_domain: tuple[float, float] | None = None,
    rules: Sequence[tuple[float, str]] = (),
) -> Specification:
    """Lines and points of trials; `say` puts a point in words.

    Both axes are logarithmic, unless a `y_domain` is given: then y is linear within it. `rules` are level lines with
    their words.
    """
    places = [place for line in lines for place in line.places]
    low, high = min(place.x for place in places), max(place.x for place in places)
    x_scale = reach(low / (high / low) ** 0.04, high * (high / low) ** 0.04, type="log")
    heights = [*(place.y for place in places), *(height for height, _ in rules)]
    foot, top = y_domain or (min(heights) / 1.25, max(heights) * 1.25)
    y_scale = reach(foot, top, type="linear" if y_domain else "log", zero=False)
    x_of, y_of = alt.X("x:Q", axis=x_axis, scale=x_scale), alt.Y("y:Q", axis=y_axis, scale=y_scale)
    upright, below = _VerticalScale(foot, top, is_log=y_domain is None), is_narrow(width)
    plot = in_columns(width, 1)[1] - (_LETTER_ROOM if below else _NAMES)
    names = list(_LETTERS) if below else [line.name for line in lines]
    rows = [point(place.trial, place.x, place.y, say(place)) for place in places]
    layers = [
        *intervals.bands(lines, x_of, y_of),
        _lines(lines, x_of, y_of),
        *points(rows, x_of, y_of),
        _ends(lines, names, x_of, y_of, upright),
    ]
    drawn = layered([*_rules(rules, y_of, plot), *layers], plot, _PLOT_HEIGHT)
    return arranged([drawn, _list(lines, width)], 1, 12) if below else drawn


def _lines(lines: Sequence[Series], x_of: alt.X, y_of: alt.Y) -> Mark:
    strategies = [line.places[0].trial.spec.strategy for line in lines]
    rows = [
        {"x": x, "y": y, "series": number, "strategy": strategy, "dash": line.places[0].trial.is_measured}
        for number, (line, strategy) in enumerate(zip(lines, strategies, strict=True))
        for x, y in line.medians
    ]
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=[True, False], range=[[1, 0], [5, 3]]), legend=None)
    stroke = strategy_stroke(strategies)
    place = {"x": x_of, "y": y_of, "detail": "series:N", "stroke": stroke, "strokeDash": dash}
    return mark("line", rows, place, strokeWidth=1.8, aria=False)


def _list(lines: Sequence[Series], width: float) -> Specification:
    """The names of the lines, each behind its letter."""
    texts = [
        {"letter": letter if not at else "", "text": text}
        for letter, line in zip(_LETTERS, lines, strict=False)
        for at, text in enumerate(wrapped(line.name, width - 2 * _LETTER_ROOM))
    ]
    rows, y = [{"row": row, **text} for row, text in enumerate(texts)], alt.Y("row:O", axis=None)
    marks = [
        mark("text", rows, {"x": alt.value(at), "y": y, "text": name}, align="left", fontSize=11)
        for name, at in (("letter:N", 0), ("text:N", _LETTER_ROOM))
    ]
    return layered(marks, width - 2 * _LETTER_ROOM, 15 * len(texts))


def _ends(lines: Sequence[Series], names: Sequence[str], x_of: alt.X, y_of: alt.Y, scale: _VerticalScale) -> Mark:
    """The name of each line behind its last point, moved apart where they would lie over each other."""
    last = [(*line.medians[-1], name) for line, name in zip(lines, names, strict=False)]
    rows = []
    for x in sorted({x for x, _, _ in last}):
        group = [(y, name) for at, y, name in last if at == x]
        heights = spread_out([scale.pixel(y) for y, _ in group], _LABEL_GAP, _PLOT_HEIGHT)
        rows += [
            {"x": x, "y": scale.value(height), "text": name} for (_, name), height in zip(group, heights, strict=True)
        ]
    return mark("text", rows, {"x": x_of, "y": y_of, "text": "text:N"}, align="left", dx=13, limit=215, fontSize=11)


@dataclass(frozen=True)
class _VerticalScale:
    """The scale of the plot's height."""

    low: float
    high: float
    is_log: bool

    def pixel(self, value: float) -> float:
        """Pixels of `value` above the plot's foot."""
        low, high, at = (self._straight(level) for level in (self.low, self.high, value))
        return _PLOT_HEIGHT * (at - low) / (high - low)

    def value(self, pixel: float) -> float:
        """The value `pixel` above the plot's foot."""
        low, high = self._straight(self.low), self._straight(self.high)
        at = low + (high - low) * pixel / _PLOT_HEIGHT
        return math.exp(at) if self.is_log else at

    def _straight(self, value: float) -> float:
        return math.log(value) if self.is_log else value


def spread_out(places: Sequence[float], gap: float, top: float = math.inf) -> list[float]:
    """`places` moved so that no two are closer than `gap` and, as far as there is room, all lie from 0 to `top`.

    Neighbours that are too close are moved apart around their common centre.
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    touching: list[tuple[float, int]] = []  # the centre of a group of neighbours, and how many they are
    for index in order:
        touching.append((places[index], 1))
        while len(touching) > 1:
            (low, few), (high, more) = touching[-2:]
            if high - low >= gap * (few + more) / 2:
                break
            touching[-2:] = [((low * few + high * more) / (few + more), few + more)]
    spread = [centre + gap * (step - (count - 1) / 2) for centre, count in touching for step in range(count)]
    for step in range(len(spread)):
        spread[step] = max(spread[step], spread[step - 1] + gap if step else 0.0)
    for step in reversed(range(len(spread))):
        spread[step] = min(spread[step], spread[step + 1] - gap if step + 1 < len(spread) else top)
    return [spread[order.index(index)] for index in range(len(places))]


def _rules(rules: Sequence[tuple[float, str]], y_of: alt.Y, width: float) -> list[Mark]:
    layers: list[Mark] = []
    for height, text in rules:
        rows = [{"y": height, "text": text}]
        line, words = {"y": y_of, "description": "text:N"}, {"x": alt.value(width), "y": y_of, "text": "text:N"}
        layers += [
            mark("rule", rows, line, color="var(--limit)", strokeWidth=1.5, strokeDash=[8, 4]),
            mark("text", rows, words, align="right", dy=-7, color="var(--limit)"),
        ]
    return layers
