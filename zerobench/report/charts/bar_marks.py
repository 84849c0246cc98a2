"""The marks of stacked bars: parts, hatching over what is predicted, names, totals, and the line of the capacity."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from zerobench.report.charts import palette
from zerobench.report.charts.render import HATCH, WIDTH, Mark, Specification, data, layered
from zerobench.report.charts.words import ByteAxis, part_sentence
from zerobench.units import format_bytes

_ROW_HEIGHT = 26
_LETTER = 6.6
"""About the width of a letter of a row's label."""
_THINNEST = 0.2
"""Pixels of a part that is drawn."""
_ROOM = 1.14
"""How far the axis goes on beyond the longest bar, for the figure at its end."""
_NAME_WIDTH = 7.0
"""About what a letter of a name within a bar takes."""


def chart(
    parts: pd.DataFrame,
    chosen: pd.DataFrame,
    failed: list[dict[str, Any]],
    unit: ByteAxis,
    axis: str,
    capacity: pd.Series[int],
) -> Specification:
    """The plot: a bar for each trial of `chosen`, made of its `parts`, and a row of words for each of `failed`.

    `capacity` is empty where no line is to be drawn; `axis` is the words of the axis of bytes.
    """
    names = [*chosen["name"], *(row["name"] for row in failed)]
    widest = unit.of(max(parts["end"].max(), capacity.max() if len(capacity) else 0))
    x = alt.X("start:Q", title=axis, scale=alt.Scale(domain=[0, widest * _ROOM], nice=False))
    y = alt.Y("name:N", title=None, sort=None, scale=alt.Scale(domain=names, paddingInner=0.28))
    scale = _plot_width(names) / (widest * _ROOM)
    layers = [
        _segments(parts, unit, x, y, scale),
        _hatch(chosen, unit, y),
        *_names(parts, unit, y, scale),
        *_totals(chosen, unit, y),
    ]
    if failed:
        layers.append(
            alt.Chart(data(failed))
            .mark_text(align="left", dx=6, color="var(--limit)")
            .encode(x=alt.datum(0), y=y, text=alt.Text("text:N"))
        )
    if len(capacity):
        layers += _capacity(chosen, unit, y)
    return layered(layers, _plot_width(names), _ROW_HEIGHT * len(names))


def _plot_width(names: list[str]) -> float:
    """What the labels leave of the drawing's width."""
    return WIDTH - min(340.0, _LETTER * max(map(len, names))) - 24


def _segments(parts: pd.DataFrame, unit: ByteAxis, x: alt.X, y: alt.Y, scale: float) -> Mark:
    """The parts that are wide enough to be seen; `scale` is pixels for one of `unit`."""
    drawn = parts[(parts["end"] - parts["start"]) * scale / unit.size >= _THINNEST]
    rows = [
        {
            "name": row["name"],
            "start": unit.of(row["start"]),
            "end": unit.of(row["end"]),
            "group": palette.CATEGORY_NAMES[row["group"]],
            "said": _said(row),
        }
        for _, row in drawn.iterrows()
    ]
    present = [group for group in palette.CATEGORY_COLOURS if (drawn["group"] == group).any()]
    colour = alt.Color(
        "group:N",
        title=None,
        scale=alt.Scale(
            domain=[palette.CATEGORY_NAMES[group] for group in present],
            range=[palette.category_colour(group) for group in present],
        ),
        legend=alt.Legend(columns=5, symbolType="square", offset=24),
    )
    return (
        alt.Chart(data(rows))
        .mark_bar(stroke="var(--paper)", strokeWidth=0.7)
        .encode(x=x, x2=alt.X2("end:Q"), y=y, color=colour, description=alt.Description("said:N"))
    )


def _said(row: pd.Series[Any]) -> str:
    """`zero2, first moment (optimizer states): 1.20 GiB, 12 % of the peak`."""
    part, group = str(row["category"]).replace("_", " "), palette.CATEGORY_NAMES[row["group"]]
    part = {"rest of process": group}.get(part, part)
    within = "" if part == group else f" ({group})"
    return part_sentence(row["name"], part + within, row["bytes"], row["whole"])


def _hatch(chosen: pd.DataFrame, unit: ByteAxis, y: alt.Y) -> Mark:
    """Over the bars of predictions: hatching, and an outline for every bar, so that pale colours end somewhere."""
    rows = [
        {"name": row["name"], "start": 0, "end": unit.of(row["drawn"]), "fill": "none" if row["is_measured"] else HATCH}
        for _, row in chosen.iterrows()
    ]
    return (
        alt.Chart(data(rows))
        .mark_bar(stroke="var(--ink)", strokeWidth=0.8, aria=False)
        .encode(x=alt.X("start:Q"), x2=alt.X2("end:Q"), y=y, fill=alt.Fill("fill:N", scale=None))
    )


def _names(parts: pd.DataFrame, unit: ByteAxis, y: alt.Y, scale: float) -> list[Mark]:
    """The names of those groups whose parts are wide enough on the bar to hold them."""
    spans = parts.groupby(["name", "group"], sort=False).agg(start=("start", "min"), end=("end", "max")).reset_index()
    rows = [
        {
            "name": row["name"],
            "at": unit.of((row["start"] + row["end"]) / 2),
            "text": text,
            "ink": ink,
            "paper": palette.category_colour(row["group"]),
        }
        for _, row in spans.iterrows()
        if len(text := palette.SHORT_NAMES[row["group"]]) * _NAME_WIDTH < unit.of(row["end"] - row["start"]) * scale
        and (ink := palette.on_category(row["group"]))
    ]
    # A border in the part's own colour keeps the name readable on hatching.
    halo = (
        alt.Chart(data(rows))
        .mark_text(fontSize=11, strokeWidth=4)
        .encode(x=alt.X("at:Q"), y=y, text=alt.Text("text:N"), stroke=alt.Stroke("paper:N", scale=None))
    )
    name = (
        alt.Chart(data(rows))
        .mark_text(fontSize=11)
        .encode(x=alt.X("at:Q"), y=y, text=alt.Text("text:N"), color=alt.Color("ink:N", scale=None))
    )
    return [halo, name]


def _totals(chosen: pd.DataFrame, unit: ByteAxis, y: alt.Y) -> list[Mark]:
    """The whole, written at the end of each bar."""
    rows = [
        {"name": row["name"], "at": unit.of(row["drawn"]), "text": format_bytes(row["whole"])}
        for _, row in chosen.iterrows()
    ]
    # A border in the colour of the paper keeps the figure readable where a limit runs through it.
    halo = alt.Chart(data(rows)).mark_text(align="left", dx=6, stroke="var(--paper)", strokeWidth=3)
    plain = alt.Chart(data(rows)).mark_text(align="left", dx=6)
    place = {"x": alt.X("at:Q"), "y": y, "text": alt.Text("text:N")}
    return [halo.encode(**place), plain.encode(**place)]


def _capacity(chosen: pd.DataFrame, unit: ByteAxis, y: alt.Y) -> list[Mark]:
    """What a device holds: one line where all rows have the same, else one for each row; its figure once."""
    known = chosen[chosen["capacity_bytes"].notna()]
    first = known.drop_duplicates("capacity_bytes")
    texts = [
        {
            "name": row["name"],
            "at": unit.of(row["capacity_bytes"]),
            "text": f"capacity {format_bytes(row['capacity_bytes'], 0)}",
            "said": f"capacity of one device: {format_bytes(row['capacity_bytes'])}",
        }
        for _, row in first.iterrows()
    ]
    text = alt.Chart(data(texts[:3])).mark_text(color="var(--limit)", dy=-8, align="right", baseline="bottom")
    said = text.encode(x=alt.X("at:Q"), y=alt.value(0), text=alt.Text("text:N"))
    if len(texts) == 1:
        rule = alt.Chart(data(texts)).mark_rule(color="var(--limit)", strokeWidth=2)
        return [rule.encode(x=alt.X("at:Q"), description=alt.Description("said:N")), said]
    by_size = {row["at"]: row["said"] for row in texts}
    rows = [{"name": row["name"], "at": unit.of(row["capacity_bytes"])} for _, row in known.iterrows()]
    rows = [{**row, "said": by_size[row["at"]]} for row in rows]
    ticks = alt.Chart(data(rows)).mark_tick(orient="vertical", size=_ROW_HEIGHT, thickness=2, color="var(--limit)")
    return [ticks.encode(x=alt.X("at:Q"), y=y, description=alt.Description("said:N")), said]
