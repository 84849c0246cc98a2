"""A trial as a point: colour and figure for the strategy, shape for the offload, filled where it was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt

from zerobench.report.charts.render import Mark, mark
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words import palette

SHAPES = {"none": "circle", "cpu": "square", "nvme": "triangle-up"}
_OFFLOADS = {"none": "no offload", "cpu": "offload to CPU", "nvme": "offload to NVMe"}
_MOST_FIGURES = 120
"""Points that each have their strategy's figure on them; more would lie over each other."""
_BASELINE = 1.0

SIDES: Sequence[tuple[Literal["left", "right"], int, bool]] = (("left", 11, True), ("right", -11, False))
"""Positions of text beside a point: its alignment, its distance, and whether that is to the right."""


@dataclass(frozen=True)
class Point:
    """A trial as a mark reads it."""

    x: float
    y: float
    description: str
    strategy: str
    offload: str
    fill: str
    figure: str
    ink: str
    trial: str


def point(trial: TrialFigures, x: float, y: float, description: str) -> Point:
    """A trial as a point at x, y."""
    strategy, measured = trial.spec.strategy, trial.is_measured
    return Point(
        float(x),
        float(y),
        description,
        strategy,
        offload=_OFFLOADS[trial.offload],
        fill=palette.strategy_colour(strategy) if measured else "var(--paper)",
        figure=strategy.removeprefix("zero")[:1],
        ink=palette.on(palette.strategy_colour(strategy)) if measured else "var(--ink)",
        trial=trial.trial_id,
    )


def strategy_stroke(strategies: Sequence[str], *, legend: bool = True) -> alt.Stroke:
    """The colour of points and lines by strategy."""
    known = [*palette.STRATEGY_COLOURS, *sorted(set(strategies) - set(palette.STRATEGY_COLOURS))]
    present = [strategy for strategy in known if strategy in set(strategies)]
    scale = alt.Scale(domain=present, range=[palette.strategy_colour(strategy) for strategy in present])
    shown = alt.Legend(symbolType="circle", symbolFillColor="transparent", symbolOpacity=1, symbolStrokeWidth=3)
    return alt.Stroke("strategy:N", title=None, scale=scale, legend=shown if legend else None)


def _shape(offloads: Sequence[str], *, legend: bool) -> alt.Shape:
    present = [place for place in SHAPES if _OFFLOADS[place] in set(offloads)]
    scale = alt.Scale(domain=[_OFFLOADS[place] for place in present], range=[SHAPES[place] for place in present])
    shown = alt.Legend(symbolStrokeColor="var(--ink)", symbolFillColor="transparent")
    return alt.Shape("offload:N", title=None, scale=scale, legend=shown if legend and len(present) > 1 else None)


def points(
    rows: Sequence[Point], x: alt.X, y: alt.Y, *, among: Sequence[Point] = (), legend: bool = True
) -> list[Mark]:
    """Layers that draw `rows` (point), the strategies' figures on them where there are few.

    Plots side by side have one legend: `among` are the points of all.
    A strategy's points and figures lie over those of the one before it, so that no figure shows through a point.
    """
    few = len(rows) <= _MOST_FIGURES
    stroke = strategy_stroke([row.strategy for row in among or rows], legend=legend)
    shape = _shape([row.offload for row in among or rows], legend=legend)
    layers = []
    for strategy in sorted({row.strategy for row in rows}):
        of_strategy, place = [row for row in rows if row.strategy == strategy], {"x": x, "y": y}
        fill = alt.Fill("fill:N", scale=None)
        dot = {**place, "stroke": stroke, "fill": fill, "shape": shape, "description": "description:N"}
        size, opacity = (190, 1) if few else (45, 0.55)
        layers.append(mark("point", of_strategy, dot, size=size, strokeWidth=1.6, opacity=1, fillOpacity=opacity))
        if few:
            figure = {**place, "text": "figure:N", "color": alt.Color("ink:N", scale=None)}
            style = {"fontSize": 11, "fontWeight": "bold", "baseline": "middle", "dy": _BASELINE}
            layers.append(mark("text", of_strategy, figure, **style))
    return layers


def strategies_sentence(trials: Sequence[TrialFigures]) -> str:
    """Sentence of a caption that explains the points."""
    parts = ["One point per trial, labelled with its ZeRO stage (s: one process)"]
    if any(trial.offloads() for trial in trials):
        parts.append("shape: offload")
    return ", ".join(parts) + "."
