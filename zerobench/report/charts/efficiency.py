"""Scaling efficiency over the number of ranks: how much of the added GPUs arrives as throughput.

E(N) = (T(N) / N) / (T(M) / M), with T the throughput in tokens/s and M the fewest ranks of the same line. Under weak
scaling each rank keeps its batch; under strong scaling the global batch stays, so that T(N) / T(M) is the speed-up of
one fixed step (Hager and Wellein, "Introduction to High Performance Computing", section 5.3).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import altair as alt

from zerobench.common.units import counted
from zerobench.report.charts import intervals, lines, series
from zerobench.report.charts.marks import strategies_sentence
from zerobench.report.charts.memory_lines import VARYING, ranks_axis
from zerobench.report.charts.render import drawing
from zerobench.report.charts.series import Place, Series
from zerobench.report.charts.shown import doubt_sentence, whole
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.tables.figure import Columns, Figure, columns_of_named

_BATCH = ("micro_batch_size", "gradient_accumulation_steps")


def weak_figure(runs: RunFigures) -> Figure | None:
    """Efficiency of trials whose batch per rank is the same; None where no two world sizes were timed alike."""
    return _figure(runs, "weak", VARYING, "per-rank batch")


def strong_figure(runs: RunFigures) -> Figure | None:
    """Efficiency of trials whose global batch is the same; None where no two world sizes were timed alike."""
    return _figure(runs, "strong", (*VARYING, *_BATCH), "global batch")


def _figure(runs: RunFigures, kind: str, varying: tuple[str, ...], fixed: str) -> Figure | None:
    drawn, number = _efficiencies(runs, varying, ("global_batch_size",) if kind == "strong" else ())
    if not drawn:
        return None
    places = [place for line in drawn for place in line.places]
    trials = [place.trial for place in places]
    x_axis, _ = ranks_axis([place.x for place in places])
    top = max(110.0, max((place.interval or (0.0, place.y))[1] for place in places) * 1.05)
    y_axis, ideal = alt.Axis(title="efficiency (%)", tickCount=6), (100.0, "ideal: 100%")
    chart = partial(lines.chart, drawn, _describe, x_axis, y_axis, y_domain=(0.0, top), rules=[ideal])
    key, title = f"{kind}-scaling-efficiency", f"{kind.capitalize()} scaling efficiency"
    caption = (
        f"Throughput per GPU on N ranks relative to the line's smallest number of ranks; fixed {fixed}. "
        + strategies_sentence(trials)
        + intervals.sentence(trials, "bands")
        + doubt_sentence(trials)
        + series.left_out_sentence(drawn, number)
    )
    return Figure(key, title, caption, drawing(chart, key, title), _table(drawn))


def _efficiencies(runs: RunFigures, varying: Sequence[str], fixed: Sequence[str]) -> tuple[list[Series], int]:
    """Lines of trials at their per cent, 100 on the fewest ranks of each; and how many lines there are."""
    rates = [(trial, rate) for trial in whole(runs.figures) if (rate := trial.rate) is not None]
    places = [Place(trial, trial.spec.world_size, rate.tokens_per_s, rate.interval) for trial, rate in rates]
    drawn, number = series.assign_series(places, varying, fixed)
    return [Series(line.name, _percent(line)) for line in drawn], number


def _percent(line: Series) -> list[Place]:
    fewest = min(place.x for place in line.places)
    base = median(place.y for place in line.places if place.x == fewest)
    return [
        replace(place, y=100 * place.y / base, interval=ends and (100 * ends[0] / base, 100 * ends[1] / base))
        for place in line.places
        for ends in [place.interval]
    ]


def _describe(place: Place) -> str:
    ranks = counted(int(place.x), "rank")
    share = f"{place.y:.0f}%{intervals.text(place.interval)}"
    return f"{place.trial.marked_label}: {share} on {ranks}, {_rate(place):,.0f} tokens/s"


def _rate(place: Place) -> float:
    """Tokens per second of all ranks."""
    rate = place.trial.rate
    return 0.0 if rate is None else rate.tokens_per_s * place.trial.spec.world_size


def _table(drawn: Sequence[Series]) -> Columns:
    rows = [
        {
            "line": line.name,
            "trial": place.trial.marked_label,
            "ranks": f"{place.x:,}",
            "global batch": f"{place.trial.spec.global_batch_size:,}",
            "tokens/s": f"{_rate(place):,.1f}",
            "efficiency (%)": f"{place.y:.1f}",
        }
        for line in drawn
        for place in sorted(line.places, key=lambda place: place.x)
    ]
    return columns_of_named(rows)
