"""Throughput against memory, those trials marked that none beats in both: what one chooses from."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from zerobench.report.charts.marks import SIDES, point_row, points, strategies_sentence
from zerobench.report.charts.render import WIDTH, Mark, Specification, arranged, data, layered, svg
from zerobench.report.charts.shown import completed, prepared
from zerobench.report.charts.words import ByteAxis, byte_axis
from zerobench.report.column_units import plain
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.units import format_bytes

_KEY = "throughput-against-memory"
_WORK = {"model": "{}", "sequence_length": "sequence length {}", "device_name": "{}", "run_id": "{}"}
"""What trials that are compared have in common, and how a plot's name says it."""
_MOST_PANELS = 4
"""Models that have a plot each: those with most trials."""
_LETTER = 6.2
"""About the width of a letter of a name."""
_CROWD = 60
"""More points than this leave no room for names."""
_MOST_NAMES = 8
"""Trials of a front that are named beside their points."""


def figure(frames: RunFrames) -> Figure | None:
    """Tokens per second and GPU over the device's peak, a plot for each model; None where nothing was timed."""
    trials = completed(prepared(frames.trials))
    trials = trials[trials["tokens_per_s"].notna() & trials["device_peak_bytes"].notna()].copy()
    if trials.empty:
        return None
    trials["speed"] = trials["tokens_per_s"].astype(float) / trials["world_size"].astype(float)
    unit = byte_axis(trials["device_peak_bytes"].astype(float))
    trials["size"] = trials["device_peak_bytes"].astype(float) / unit.size
    told = [name for name in _WORK if name == "model" or len(trials[name].unique()) > 1]
    trials["plot"] = [
        plain(", ".join(_WORK[name].format(value) for name, value in zip(told, values, strict=True)))
        for values in zip(*(trials[name] for name in told), strict=True)
    ]
    # Of these columns alone: each group of all columns would be cut out of a hundred of them.
    slim = trials[["size", "speed", "is_believed", *_WORK]]
    groups = [group for _, group in slim.groupby(list(_WORK), sort=False, dropna=False)]
    trials["is_best"] = pd.concat([on_front(group) for group in groups]).reindex(trials.index)
    groups.sort(key=lambda group: -len(group))
    panels = [trials.loc[group.index] for group in groups[:_MOST_PANELS]]
    width = WIDTH - 90 if len(panels) == 1 else (WIDTH - 160) / 2
    plots = [_plot(panel, unit, width, is_first=panel is panels[0], alone=len(panels) == 1) for panel in panels]
    drawn = plots[0] if len(plots) == 1 else arranged(plots, 2, 26)
    title = "Throughput against memory"
    return Figure(_KEY, title, _caption(trials, len(groups)), svg(drawn, _KEY, title), _table(trials, unit))


def on_front(trials: pd.DataFrame) -> pd.Series[bool]:
    """Whether no other of the believed `trials` is at least as fast with no more memory, and better in one (Pareto)."""
    points = list(zip(trials["size"], trials["speed"], trials["is_believed"], strict=True))
    front: set[tuple[float, float]] = set()
    fastest = float("-inf")
    for size, speed in sorted(
        ((size, speed) for size, speed, told in points if told), key=lambda one: (one[0], -one[1])
    ):
        if speed > fastest:
            front.add((size, speed))
            fastest = speed
    # Two trials that tie in both are both on the front.
    return pd.Series([bool(told) and (size, speed) in front for size, speed, told in points], index=trials.index)


def _plot(trials: pd.DataFrame, unit: ByteAxis, width: float, *, is_first: bool, alone: bool) -> Specification:
    y_title = "tokens per second and GPU" if is_first or alone else None
    top = trials["speed"].max() * 1.12
    x_top = trials["size"].max() * 1.12
    x = alt.X("x:Q", title=f"peak memory of one device ({unit.name})", scale=alt.Scale(domain=[0, x_top], nice=False))
    y = alt.Y("y:Q", title=y_title, axis=alt.Axis(format="~s"), scale=alt.Scale(domain=[0, top], nice=False))
    height = 330 if alone else 250
    rows = [point_row(row, row["size"], row["speed"], _said(row)) for _, row in trials.iterrows()]
    front = trials[trials["is_best"]].sort_values("size")
    layers = [
        _front(front, x, y),
        *points(rows, x, y),
        *_names(front, x, y, (x_top, top), (width, height), is_crowded=len(trials) > _CROWD),
    ]
    return layered(layers, width, height, None if alone else str(trials["plot"].iloc[0]))


def _said(row: pd.Series[Any]) -> str:
    best = ", on the front" if row["is_best"] else ""
    return f"{row['name']}: {row['speed']:,.0f} tokens/s and GPU, {format_bytes(row['device_peak_bytes'])}{best}"


def _front(front: pd.DataFrame, x: alt.X, y: alt.Y) -> Mark:
    """The edge of what can be had: at each memory the fastest that fits."""
    rows = [{"x": size, "y": speed} for size, speed in zip(front["size"], front["speed"], strict=True)]
    line = alt.Chart(data(rows)).mark_line(
        interpolate="step-after", color="var(--ink)", strokeWidth=1.3, strokeDash=[2, 2], aria=False
    )
    return line.encode(x=x, y=y)


def _names(
    front: pd.DataFrame,
    x: alt.X,
    y: alt.Y,
    reach: tuple[float, float],
    size: tuple[float, float],
    *,
    is_crowded: bool,
) -> list[Mark]:
    """Names beside the front's points, to the left where there is no room on the right; those in the way left out.

    Among very many points only the fastest and the leanest are named.
    """
    rows: list[dict[str, Any]] = []
    taken: list[tuple[float, float, float]] = []
    ordered = front.sort_values("speed", ascending=False)
    named = ordered.iloc[[0, -1]] if is_crowded and len(ordered) > 1 else ordered
    for _, row in named.iterrows():
        across, up = row["size"] / reach[0] * size[0], row["speed"] / reach[1] * size[1]
        length = min(_LETTER * len(row["name"]), size[0] / 2)
        is_right = bool(across + length + 11 < size[0])
        start = across if is_right else across - length
        if all(abs(up - other) > 13 or start > right or start + length < left for left, right, other in taken):
            taken.append((start, start + length, up))
            rows.append({"x": row["size"], "y": row["speed"], "text": row["name"], "is_right": is_right})
    layers = []
    for align, dx, is_right in SIDES:
        own = alt.Chart(data([row for row in rows[:_MOST_NAMES] if row["is_right"] == is_right]))
        for border in (3, 0):  # first a border in the paper's colour, which keeps the name readable on lines
            mark = own.mark_text(align=align, dx=dx, dy=-9, fontSize=11, limit=size[0] / 2, strokeWidth=border)
            stroke = alt.value("var(--paper)" if border else "transparent")
            layers.append(mark.encode(x=x, y=y, text=alt.Text("text:N"), stroke=stroke))
    return layers


def _caption(trials: pd.DataFrame, number: int) -> str:
    text = (
        f"{strategies_sentence(trials)} The dotted line joins those that none of the same model, device and sequence"
        " length beats in both memory and speed (the Pareto front). Memory is the largest peak, start-up included."
    )
    if not trials["is_believed"].all():
        text += " Trials marked `!` (their losses or gradient norms leave the reference's) are on no front."
    if number > _MOST_PANELS:
        text += f" Of {number} plots the {_MOST_PANELS} with most trials are drawn."
    return text


def _table(trials: pd.DataFrame, unit: ByteAxis) -> pd.DataFrame:
    ordered = trials.sort_values(["model", "size"], kind="stable")
    return pd.DataFrame(
        {
            "trial": ordered["name"].to_numpy(),
            "model": [plain(model) for model in ordered["model"]],
            f"peak ({unit.name})": [unit.show(size) for size in ordered["device_peak_bytes"]],
            "tokens/s and GPU": [f"{speed:,.1f}" for speed in ordered["speed"]],
            "on the front": ["yes" if best else "" for best in ordered["is_best"]],
        }
    )
