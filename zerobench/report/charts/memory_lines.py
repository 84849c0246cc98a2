"""Device memory along one axis, both axes logarithmic: over the number of parameters, and over that of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import altair as alt

from zerobench.common.units import counted, format_bytes, format_count
from zerobench.report.charts import lines, series
from zerobench.report.charts.marks import strategies_sentence
from zerobench.report.charts.render import drawing
from zerobench.report.charts.series import Place, Series
from zerobench.report.charts.shown import doubt_sentence, evidence_sentence, whole
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named
from zerobench.report.words.column_units import Unit, byte_axis

_CAPACITY_REACH = 20
"""A capacity further than this many times above the largest peak is not drawn."""


VARYING = ("num_nodes", "world_size")


def model_size_figure(runs: RunFigures) -> Figure | None:
    """Memory over the model's size; None where no two models were run alike."""
    return _memory_lines(
        runs,
        key="memory-over-model-size",
        x=lambda trial: trial.num_params,
        varying=("model", "num_params"),
        axis=_parameters_axis,
        words="model size",
        say=lambda value: f"{format_count(value)} parameters",
    )


def world_size_figure(runs: RunFigures) -> Figure | None:
    """Memory over the number of ranks; None where no two world sizes were run alike."""
    return _memory_lines(
        runs,
        key="memory-over-world-size",
        x=lambda trial: trial.spec.world_size,
        varying=VARYING,
        axis=ranks_axis,
        words="the number of ranks",
        say=lambda value: counted(int(value), "rank"),
    )


def _parameters_axis(sizes: Sequence[float]) -> tuple[alt.Axis, float]:
    """Billions where the largest model has one, else millions."""
    word, size = ("billions", 1e9) if max(sizes) >= 1e9 else ("millions", 1e6)
    return alt.Axis(title=f"model parameters ({word})", format="~g", tickCount=8, labelOverlap=True), size


def ranks_axis(sizes: Sequence[float]) -> tuple[alt.Axis, float]:
    """A tick at each number of ranks, as far as they have room."""
    return alt.Axis(title="ranks", values=sorted(set(sizes)), format="d", labelOverlap=True), 1.0


def _memory_lines(
    runs: RunFigures,
    *,
    key: str,
    x: Callable[[TrialFigures], int | None],
    varying: Sequence[str],
    axis: Callable[[Sequence[float]], tuple[alt.Axis, float]],
    words: str,
    say: Callable[[float], str],
) -> Figure | None:
    """The device's largest peak over `x`; None where no line has two points.

    `axis` makes the axis for the values that are drawn, and says what they are counted in; `say` puts one in words.
    """
    known = [(trial, x(trial), trial.device_peak_bytes) for trial in whole(runs.figures)]
    drawn, number = series.assign_series(
        [Place(trial, value, peak) for trial, value, peak in known if value is not None and peak], varying
    )
    if not drawn:
        return None
    places = [place for line in drawn for place in line.places]
    trials = [place.trial for place in places]
    unit = byte_axis(place.y for place in places)
    capacity = sorted({trial.capacity_bytes for trial in trials if trial.capacity_bytes is not None})
    rules = [
        (unit.of(size), f"device capacity: {format_bytes(size)}")
        for size in capacity[:2]
        if size < _CAPACITY_REACH * max(place.y for place in places)
    ]
    x_axis, x_size = axis([place.x for place in places])
    scaled = [Series(line.name, [Place(p.trial, p.x / x_size, unit.of(p.y)) for p in line.places]) for line in drawn]

    def describe(place: Place) -> str:
        peak = format_bytes(place.trial.device_peak_bytes)
        return f"{place.trial.marked_label}, {say(x(place.trial) or 0)}: {peak} at the peak"

    y_axis = alt.Axis(title=f"peak memory per device ({unit.name})", format="~g", tickCount=6)
    chart = partial(lines.chart, scaled, describe, x_axis, y_axis, rules=rules)
    title = f"Device memory over {words}"
    caption = (
        "Largest peak of any rank, including start-up; logarithmic axes. "
        + strategies_sentence(trials)
        + " Lines join otherwise equal trials."
        + evidence_sentence(trials)
        + doubt_sentence(trials)
        + series.left_out_sentence(drawn, number)
    )
    return Figure(key, title, caption, drawing(chart, key, title), _table(drawn, words, unit))


def _table(drawn: Sequence[Series], words: str, unit: Unit) -> Columns:
    rows = [
        {
            "line": line.name,
            "trial": place.trial.marked_label,
            words.removeprefix("the "): f"{place.x:,}",
            f"peak ({unit.name})": unit.show(place.y),
            "evidence": place.trial.spec.evidence.value,
        }
        for line in drawn
        for place in sorted(line.places, key=lambda place: place.x)
    ]
    return columns_of_named(rows)
