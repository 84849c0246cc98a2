"""Trials along one axis (model size, ranks): a line joins trials that are alike in all else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import pandas as pd

from zerobench.report.charts.marks import point_row, points, strategy_stroke
from zerobench.report.charts.render import WIDTH, Mark, Specification, data, layered

_PLOT_WIDTH, _PLOT_HEIGHT, _LABEL_GAP = WIDTH - 270, 340, 13


def chart(
    trials: pd.DataFrame,
    x: str,
    x_axis: alt.Axis,
    y_axis: alt.Axis,
    *,
    x_size: float = 1.0,
    y_domain: tuple[float, float] | None = None,
    rules: Sequence[tuple[float, str]] = (),
) -> Specification:
    """Lines and points of `trials` (with_series), whose `y` and `said` are the height and the words of each point.

    Both axes are logarithmic, unless a `y_domain` is given: then y is linear within it. `rules` are level lines with
    their words; `x_size` is what x is counted in.
    """
    trials = trials.assign(**{x: trials[x].astype(float) / x_size})
    low, high = trials[x].min(), trials[x].max()
    reach = [low / (high / low) ** 0.04, high * (high / low) ** 0.04]
    heights = [*trials["y"], *(height for height, _ in rules)]
    foot, top = y_domain or (min(heights) / 1.25, max(heights) * 1.25)
    y_scale = alt.Scale(type="linear" if y_domain else "log", domain=[foot, top], nice=False, zero=False)
    x_of = alt.X("x:Q", axis=x_axis, scale=alt.Scale(type="log", domain=reach, nice=False))
    y_of = alt.Y("y:Q", axis=y_axis, scale=y_scale)
    upright = _Upright(foot, top, is_log=y_domain is None)
    rows = [point_row(row, row[x], row["y"], row["said"]) for _, row in trials.iterrows()]
    layers = [_lines(trials, x, x_of, y_of), *points(rows, x_of, y_of), _ends(trials, x, x_of, y_of, upright)]
    layers = [*_rules(rules, y_of), *layers]
    return layered(layers, _PLOT_WIDTH, _PLOT_HEIGHT)


def _medians(trials: pd.DataFrame, x: str) -> pd.DataFrame:
    """The middle of each line's trials at each x: one, but for repeats and settings that no column names."""
    columns = ["series", "series_name", "strategy", "is_measured", x]
    found = trials.groupby(columns, sort=True)["y"].median().reset_index()
    return found.astype({x: float, "y": float})


def _lines(trials: pd.DataFrame, x: str, x_of: alt.X, y_of: alt.Y) -> Mark:
    rows = [
        {"x": row[x], "y": row["y"], "series": row["series"], "strategy": row["strategy"], "dash": row["is_measured"]}
        for _, row in _medians(trials, x).iterrows()
    ]
    dash = alt.StrokeDash("dash:N", scale=alt.Scale(domain=[True, False], range=[[1, 0], [5, 3]]), legend=None)
    stroke = strategy_stroke([row["strategy"] for row in rows])
    return (
        alt.Chart(data(rows))
        .mark_line(strokeWidth=1.8, aria=False)
        .encode(x=x_of, y=y_of, detail=alt.Detail("series:N"), stroke=stroke, strokeDash=dash)
    )


def _ends(trials: pd.DataFrame, x: str, x_of: alt.X, y_of: alt.Y, scale: _Upright) -> Mark:
    """The name of each line behind its last point, moved apart where they would lie over each other."""
    last = _medians(trials, x).groupby("series").last().reset_index()
    rows = []
    for _, group in last.groupby(x):
        heights = spread_out([scale.pixel(height) for height in group["y"]], _LABEL_GAP, _PLOT_HEIGHT)
        rows += [
            {"x": row[x], "y": scale.value(height), "text": row["series_name"]}
            for (_, row), height in zip(group.iterrows(), heights, strict=True)
        ]
    mark = alt.Chart(data(rows)).mark_text(align="left", dx=13, limit=215, fontSize=11)
    return mark.encode(x=x_of, y=y_of, text=alt.Text("text:N"))


@dataclass(frozen=True)
class _Upright:
    """The scale of the plot's height."""

    low: float
    high: float
    is_log: bool

    def pixel(self, value: float) -> float:
        """How far above the plot's foot `value` lies."""
        low, high, at = (self._straight(one) for one in (self.low, self.high, value))
        return _PLOT_HEIGHT * (at - low) / (high - low)

    def value(self, pixel: float) -> float:
        """What lies `pixel` above the plot's foot."""
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
        while len(touching) > 1 and _too_close(touching[-2], touching[-1], gap):
            (low, few), (high, more) = touching[-2:]
            touching[-2:] = [((low * few + high * more) / (few + more), few + more)]
    spread = [centre + gap * (step - (count - 1) / 2) for centre, count in touching for step in range(count)]
    for step in range(len(spread)):
        spread[step] = max(spread[step], spread[step - 1] + gap if step else 0.0)
    for step in reversed(range(len(spread))):
        spread[step] = min(spread[step], spread[step + 1] - gap if step + 1 < len(spread) else top)
    return [spread[order.index(index)] for index in range(len(places))]


def _too_close(lower: tuple[float, int], upper: tuple[float, int], gap: float) -> bool:
    return upper[0] - lower[0] < gap * (lower[1] + upper[1]) / 2


def _rules(rules: Sequence[tuple[float, str]], y_of: alt.Y) -> list[Mark]:
    layers: list[Mark] = []
    for height, text in rules:
        rows = [{"y": height, "text": text}]
        line = alt.Chart(data(rows)).mark_rule(color="var(--limit)", strokeWidth=1.5, strokeDash=[8, 4])
        words = alt.Chart(data(rows)).mark_text(dy=-7, color="var(--limit)")
        layers += [
            line.encode(y=y_of, description=alt.Description("text:N")),
            words.encode(x=alt.value(_PLOT_WIDTH / 2), y=y_of, text=alt.Text("text:N")),
        ]
    return layers
