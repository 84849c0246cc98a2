"""Predicted against measured peaks: the identity line, and beside it how often which error occurs."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import altair as alt

from zerobench.common.units import counted, format_bytes
from zerobench.common.vocabulary import Place, StepKind
from zerobench.report.charts.render import Specification, arranged, drawing, in_columns, layered, mark, reach
from zerobench.report.figures.predictions.predicted import Cell
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words.column_units import Unit, byte_axis

_KEY = "predicted-against-measured"
_PLACES = {Place.DEVICE: ("var(--category-parameters)", "circle"), Place.HOST: ("var(--category-gradients)", "square")}
_MOST_BINS = 21
_HEIGHT = 0.9
"""Height of a plot, for one of its width."""


@dataclass(frozen=True)
class Pair:
    """A peak that was both measured and predicted."""

    trial: TrialFigures
    """The prediction."""
    cell: Cell
    error: float
    """As a fraction of what was measured."""

    @property
    def description(self) -> str:
        measured, predicted = format_bytes(self.cell.measured_bytes), format_bytes(self.cell.predicted_bytes)
        off = _percent(self.error, signed=True)
        return f"{self.trial.marked_label}, {self.cell.place}: measured {measured}, predicted {predicted}, {off}"


def figure(runs: RunFigures) -> Figure | None:
    """Each prediction's largest steady peaks beside the measured ones; None where nothing was both."""
    pairs = largest_peaks(runs)
    if not pairs:
        return None
    unit = byte_axis(pair.cell.measured_bytes for pair in pairs)
    worst = max(pairs, key=lambda pair: abs(pair.error))
    sizes: dict[str, list[float]] = {}
    for pair in pairs:
        sizes.setdefault(pair.trial.spec.evidence.value, []).append(abs(pair.error))
    by_world = ", ".join(f"{name} {_percent(median(errors))}" for name, errors in sizes.items())
    off = by_world if len(sizes) > 1 else _percent(median(abs(pair.error) for pair in pairs))
    title = f"Median error of predicted peaks: {off}"
    caption = (
        f"Left: {counted(len(pairs), 'steady-step peak')}, predicted against measured; line: equality. "
        "Right: distribution of errors, negative where the prediction is too small. Worst: "
        f"{_percent(worst.error, signed=True)} ({worst.trial.marked_label}, {worst.cell.place})."
    )
    return Figure(_KEY, title, caption, drawing(partial(_chart, pairs, unit), _KEY, title), _table(pairs, unit))


def largest_peaks(runs: RunFigures) -> list[Pair]:
    """The steady phase with the largest measured total, of each prediction and place."""
    order = {id(trial): place for place, trial in enumerate(runs.figures)}
    largest: dict[tuple[int, int, Place], Pair] = {}
    for errors in runs.predicted:
        for cell in errors.peaks(*_PLACES):
            key = order[id(errors.trial)], cell.rank, cell.place
            is_both = cell.measured_bytes > 0 and cell.predicted_bytes > 0 and cell.step is StepKind.STEADY
            if is_both and cell.error is not None:
                known = largest.get(key)
                if known is None or cell.measured_bytes > known.cell.measured_bytes:
                    largest[key] = Pair(errors.trial, cell, cell.error)
    return [largest[key] for key in sorted(largest, key=lambda key: (key[0], key[2].value))]


def _chart(pairs: Sequence[Pair], unit: Unit, *, width: float) -> Specification:
    columns, each = in_columns(width, 2)
    return arranged([_scatter(pairs, unit, each), _histogram(pairs, each)], columns, 34)


def _scatter(pairs: Sequence[Pair], unit: Unit, width: float) -> Specification:
    rows = [
        {
            "x": unit.of(pair.cell.measured_bytes),
            "y": unit.of(pair.cell.predicted_bytes),
            "place": pair.cell.place.value,
            "description": pair.description,
        }
        for pair in pairs
    ]
    ends = [unit.of(size) for pair in pairs for size in (pair.cell.measured_bytes, pair.cell.predicted_bytes)]
    low, high = min(ends) / 1.3, max(ends) * 1.3
    scale = reach(low, high, type="log")
    axis = alt.Axis(format="~g", tickCount=6, labelOverlap=True)
    x = alt.X("x:Q", title=f"measured peak ({unit.name})", scale=scale, axis=axis)
    y = alt.Y("y:Q", title=f"predicted peak ({unit.name})", scale=scale, axis=axis)
    present = [place for place in _PLACES if any(pair.cell.place is place for pair in pairs)]
    names = [place.value for place in present]
    colours, shapes = ([_PLACES[place][at] for place in present] for at in (0, 1))
    colour = alt.Stroke("place:N", title=None, scale=alt.Scale(domain=names, range=colours))
    shape = alt.Shape("place:N", title=None, scale=alt.Scale(domain=names, range=shapes))
    identity = [{"x": end, "y": end} for end in (low, high)]
    line = mark("line", identity, {"x": x, "y": y}, color="var(--muted)", strokeWidth=1.2, aria=False)
    place = {"x": x, "y": y, "stroke": colour, "shape": shape, "description": "description:N"}
    return layered([line, mark("point", rows, place, size=55, strokeWidth=1.6, opacity=0.9)], width, _HEIGHT * width)


def _histogram(pairs: Sequence[Pair], width: float) -> Specification:
    """Errors in bins of a round size, zero in the middle of one."""
    percents = [100 * pair.error for pair in pairs]
    size = bin_width(max(map(abs, percents)))
    bins = Counter(round(percent / size) for percent in percents)
    rows = [
        {
            "start": (at - 0.5) * size,
            "end": (at + 0.5) * size,
            "count": count,
            "description": f"{counted(count, 'peak')} from {(at - 0.5) * size:+g}% to {(at + 0.5) * size:+g}% off",
        }
        for at, count in sorted(bins.items())
    ]
    end = (max(map(abs, bins)) + 1) * size
    x = alt.X("start:Q", title="error (%)", scale=reach(-end, end))
    y = alt.Y("count:Q", title="peaks", axis=alt.Axis(format="d", tickMinStep=1))
    place = {"x": x, "x2": "end:Q", "y": y, "y2": alt.Y2Datum(0), "description": "description:N"}
    bars = mark("bar", rows, place, color="var(--category-buffers)", stroke="var(--ink)", strokeWidth=0.7)
    zero = mark("rule", [{"start": 0.0}], {"x": x}, color="var(--muted)", strokeWidth=1.2, aria=False)
    return layered([bars, zero], width, _HEIGHT * width)


def bin_width(largest: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten with which errors up to `largest` take at most _MOST_BINS bins."""
    least = max(2 * largest / _MOST_BINS, 1e-6)
    power = 10.0 ** math.floor(math.log10(least))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= least))


def _percent(error: float, *, signed: bool = False) -> str:
    percent = 100 * error
    digits = 1 if abs(percent) >= 1 or percent == 0 else 2
    return f"{percent:+.{digits}f}%" if signed else f"{percent:.{digits}f}%"


def _table(pairs: Sequence[Pair], unit: Unit) -> Columns:
    rows = [
        {
            "trial": pair.trial.marked_label,
            "place": pair.cell.place.value,
            "rank": str(pair.cell.rank),
            "phase": pair.cell.phase.value,
            f"measured ({unit.name})": unit.show(pair.cell.measured_bytes),
            f"predicted ({unit.name})": unit.show(pair.cell.predicted_bytes),
            "error": _percent(pair.error, signed=True),
        }
        for pair in pairs
    ]
    return columns_of_named(rows)
