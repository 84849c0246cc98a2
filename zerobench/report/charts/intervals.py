"""Uncertainty of an expected speed, in charts: a bar or a band from the low to the high end of its interval."""

from collections.abc import Sequence

import altair as alt

from zerobench.report.charts.render import Mark, mark
from zerobench.report.charts.series import Series
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words import palette

Interval = tuple[float, float]
"""80% interval of a value."""


def bars(places: Sequence[tuple[float, Interval]], x: alt.X, y: alt.Y) -> list[Mark]:
    """An upright bar at each x; no layer where there is none."""
    rows = [{"x": at, "y": low, "high": high} for at, (low, high) in places]
    place = {"x": x, "y": y, "y2": "high:Q"}
    return [mark("rule", rows, place, color="var(--muted)", strokeWidth=1.5, aria=False)] if rows else []


def bands(lines: Sequence[Series], x: alt.X, y: alt.Y) -> list[Mark]:
    """A pale band for each line, in its strategy's colour; no layer where no line has one."""
    rows = [
        {
            "x": place.x,
            "y": place.interval[0],
            "high": place.interval[1],
            "line": number,
            "colour": palette.strategy_colour(place.trial.spec.strategy),
        }
        for number, line in enumerate(lines)
        for place in sorted(line.places, key=lambda place: place.x)
        if place.interval is not None
    ]
    place = {"x": x, "y": y, "y2": "high:Q", "fill": alt.Fill("colour:N", scale=None), "detail": "line:N"}
    return [mark("area", rows, place, opacity=0.15, aria=False)] if rows else []


def text(interval: Interval | None) -> str:
    """Text of a point's interval."""
    return "" if interval is None else f" ({interval[0]:,.0f} to {interval[1]:,.0f})"


def sentence(trials: Sequence[TrialFigures], shape: str) -> str:
    """Sentence of a caption that explains the `shape`s of expected speeds; empty where all were timed."""
    expected = [trial for trial in trials if trial.rate and trial.rate.interval]
    if not expected:
        return ""
    those = "All speeds are" if len(expected) == len(trials) else "Hollow points:"
    return f" {those} expected, not measured; {shape}: 80% interval."
