"""A batch that grows: throughput and device peak over the tokens of a step, beside the same work with a fixed batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import pandas as pd

from zerobench.report.batch_ramp import BatchFigures
from zerobench.report.charts.marks import point_row, points, strategy_stroke
from zerobench.report.charts.render import WIDTH, Specification, arranged, data, layered, svg
from zerobench.report.charts.shown import KEY, completed, doubt_sentence, evidence_sentence, prepared
from zerobench.report.charts.words import ByteAxis, byte_axis
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.render.frame import table_frame
from zerobench.report.tables.batch_ramp import batch_ramp_table
from zerobench.report.tables.model import Line
from zerobench.units import format_bytes

_KEY = "batch-ramp"
_HEIGHT = 210


def figure(frames: RunFrames) -> Figure | None:
    """Each size of the batch of ramped trials and of their fixed ones; None where no trial's batch grew."""
    sizes = _sizes(batch_ramp_table(frames.figures).lines)
    found = completed(prepared(frames.trials)).merge(sizes, on=KEY)
    if found.empty:
        return None
    unit = byte_axis(found["peak_bytes"].dropna().astype(float))
    title = "Batch ramp"
    plots = _plots(found, unit)
    caption = (
        "Throughput and device peak over the tokens of a step. A line joins the sizes of a batch that grows, from its "
        "first to the full one; a point without a line is the same work with a fixed batch. The micro-batch stays, so "
        "what grows is the number of micro-batches that gradients are accumulated over."
    )
    caption += evidence_sentence(found) + doubt_sentence(found)
    drawn = svg(arranged(plots, 2, 40), _KEY, title) if plots else None
    return Figure(_KEY, title, caption, drawn, table_frame(batch_ramp_table(frames.figures)))


def _sizes(lines: Sequence[Line[BatchFigures]]) -> pd.DataFrame:
    """A row for each size; seconds and speed of a size are named so, since trials have both too."""
    columns = [*KEY, "tokens", "size_tokens_per_s", "peak_bytes"]
    rows = [
        (line.trial.run_id, line.trial.trial_id, one.tokens, one.tokens_per_s, one.peak_bytes)
        for line in lines
        for one in [line.figures]
    ]
    return pd.DataFrame(rows, columns=columns)


def _plots(found: pd.DataFrame, unit: ByteAxis) -> list[Specification]:
    plots = []
    timed, watched = found[found["size_tokens_per_s"].notna()], found[found["peak_bytes"].notna()]
    if not timed.empty:
        heights = timed["size_tokens_per_s"].astype(float)
        plots.append(_plot(timed.assign(y=heights), "tokens/s", lambda row: f"{row['y']:,.0f} tokens/s", legend=True))
    if not watched.empty:
        heights = watched["peak_bytes"].astype(float) / unit.size
        plots.append(
            _plot(
                watched.assign(y=heights),
                f"device peak ({unit.name})",
                lambda row: format_bytes(int(row["peak_bytes"])),
                legend=timed.empty,
            )
        )
    return plots


def _plot(found: pd.DataFrame, title: str, say: Callable[[Any], str], *, legend: bool) -> Specification:
    sizes = sorted({int(tokens) for tokens in found["tokens"]})
    room = max(1.0, 0.06 * (sizes[-1] - sizes[0]))
    x_scale = alt.Scale(domain=[sizes[0] - room, sizes[-1] + room], nice=False)
    x = alt.X("x:Q", axis=alt.Axis(title="tokens a step", values=sizes, format=",d", labelOverlap=True), scale=x_scale)
    y_scale = alt.Scale(domain=[0, float(found["y"].max()) * 1.15], nice=False)
    y = alt.Y("y:Q", axis=alt.Axis(title=title, tickCount=5), scale=y_scale)
    rows = [
        {
            **point_row(row, row["tokens"], row["y"], f"{row['name']}, {row['tokens']:,} tokens a step: {say(row)}"),
            "trial": row["trial_id"],
        }
        for _, row in found.iterrows()
    ]
    stroke = strategy_stroke([row["strategy"] for row in rows], legend=legend)
    line = alt.Chart(data(rows)).mark_line(strokeWidth=1.8, aria=False)
    layers = [line.encode(x=x, y=y, detail=alt.Detail("trial:N"), stroke=stroke), *points(rows, x, y, legend=legend)]
    return layered(layers, (WIDTH - 200) / 2, _HEIGHT)
