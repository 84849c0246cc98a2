"""A batch that grows: throughput and device peak over the tokens of a step, beside the same work with a fixed batch."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import altair as alt

from zerobench.common.units import format_bytes
from zerobench.report.charts.marks import point, points, strategy_stroke
from zerobench.report.charts.render import Specification, arranged, drawing, in_columns, layered, mark, reach
from zerobench.report.charts.shown import doubt_sentence, evidence_sentence, whole
from zerobench.report.figures.batch_ramp import BatchFigures, ramped_and_fixed
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.batch_ramp import batch_ramp_table
from zerobench.report.tables.figure import Figure
from zerobench.report.tables.grid import table_columns
from zerobench.report.words.column_units import byte_axis

_KEY = "batch-ramp"
_HEIGHT = 210


Size = tuple[TrialFigures, BatchFigures]


def figure(runs: RunFigures) -> Figure | None:
    """Each size of the batch of ramped trials and of their fixed ones; None where no trial's batch grew."""
    batches = [(trial, size) for trial in ramped_and_fixed(whole(runs.figures)) for size in trial.batches]
    if not batches:
        return None
    title = "Batch ramp"
    caption = (
        "Throughput and device peak against tokens per step. Lines: growing global batch, constant "
        "micro-batch size, more gradient accumulation steps. Single points: the same work at a fixed "
        "batch size."
    )
    trials = [trial for trial, _ in batches]
    caption += evidence_sentence(trials) + doubt_sentence(trials)
    drawn = drawing(partial(_chart, batches), _KEY, title) if list(_plots(batches, 1)) else None
    return Figure(_KEY, title, caption, drawn, table_columns(batch_ramp_table(runs.figures)))


def _chart(batches: Sequence[Size], *, width: float) -> Specification:
    columns, each = in_columns(width, 2)
    return arranged(list(_plots(batches, each)), columns, 40)


def _plots(batches: Sequence[Size], width: float) -> Iterator[Specification]:
    timed = [(trial, size, rate) for trial, size in batches if (rate := size.tokens_per_s) is not None]
    watched = [(trial, size, peak) for trial, size in batches if (peak := size.peak_bytes) is not None]
    if timed:
        yield _plot(timed, "tokens/s", lambda rate: f"{rate:,.0f} tokens/s", width, legend=True)
    if watched:
        unit = byte_axis(peak for _, _, peak in watched)
        yield _plot(watched, f"device peak ({unit.name})", format_bytes, width, legend=not timed, unit=unit.size)


def _plot(
    batches: Sequence[tuple[TrialFigures, BatchFigures, float]],
    title: str,
    say: Callable[[float], str],
    width: float,
    *,
    legend: bool,
    unit: float = 1.0,
) -> Specification:
    sizes = sorted({size.tokens for _, size, _ in batches})
    room = max(1.0, 0.06 * (sizes[-1] - sizes[0]))
    axis = alt.Axis(title="tokens per step", values=sizes, format=",d", labelOverlap=True)
    x = alt.X("x:Q", axis=axis, scale=reach(sizes[0] - room, sizes[-1] + room))
    y_scale = reach(0, max(y for _, _, y in batches) / unit * 1.15)
    y = alt.Y("y:Q", axis=alt.Axis(title=title, tickCount=5), scale=y_scale)
    rows = [
        point(trial, size.tokens, y / unit, f"{trial.marked_label}, {size.tokens:,} tokens per step: {say(y)}")
        for trial, size, y in batches
    ]
    stroke = strategy_stroke([row.strategy for row in rows], legend=legend)
    line = mark("line", rows, {"x": x, "y": y, "detail": "trial:N", "stroke": stroke}, strokeWidth=1.8, aria=False)
    return layered([line, *points(rows, x, y, legend=legend)], width, _HEIGHT)
