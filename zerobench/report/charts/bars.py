"""Memory by category as stacked bars, a row a trial: Figure 1 of the ZeRO paper (arXiv 1910.02054) with real numbers.

A part is a category; its colour is that of its group, so the three optimizer states stand apart within one colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from zerobench.report.charts import palette
from zerobench.report.charts.bar_marks import chart as bar_chart
from zerobench.report.charts.render import svg
from zerobench.report.charts.shown import (
    KEY,
    completed,
    doubt_sentence,
    evidence_sentence,
    most_telling,
    prepared,
    shown_sentence,
)
from zerobench.report.charts.words import ByteAxis, byte_axis, share
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.units import format_bytes

_CAPACITY_SEEN = 0.25
"""The capacity is drawn where the largest bar reaches this share of it; further off, it would flatten the bars."""

_OF_BAR = [
    *(*KEY, "position", "name", "label", "is_measured", "is_believed", "capacity_bytes"),
    *("evidence", "strategy", "offload_optimizer", "offload_param"),
]
"""What a bar needs to know of its trial: each part of ten thousand bars has it beside it."""


def device_figure(frames: RunFrames) -> Figure | None:
    """Device memory by category at the steady step's peak; None where no trial completed with a ledger."""
    parts = stacked(frames, "device")
    rows, drawn = _chosen(parts)
    if rows.empty:
        return None
    unit = byte_axis(rows["whole"])
    failed = _failed(frames)
    capacity = rows["capacity_bytes"].dropna()
    is_seen = not capacity.empty and rows["whole"].max() >= _CAPACITY_SEEN * capacity.min()
    axis = f"peak memory of one device ({unit.name})"
    chart = bar_chart(drawn, rows, failed, unit, axis, capacity if is_seen else capacity[:0])
    title = _title(drawn)
    caption = (
        "Device memory by category at the peak of a steady step, on the rank where it is largest."
        " What is too thin to be seen is in the table alone."
        + _capacity_sentence(capacity, is_seen=is_seen)
        + _ending(rows, parts)
    )
    return Figure("memory-per-gpu", title, caption, svg(chart, "memory-per-gpu", title), _table(drawn, unit))


def host_figure(frames: RunFrames) -> Figure | None:
    """What training keeps on the host by category, of runs that offload; None elsewhere.

    The rest of the process (interpreter, libraries, malloc's own) is left out: it is the same for every stage, and no
    prediction has it.
    """
    offload = prepared(frames.trials)["offload"]
    parts = stacked(frames, "host", without=("rest_of_process",))
    parts = parts[parts["whole"] > 0]
    if parts.empty or (offload == "none").all():
        return None
    rows, drawn = _chosen(parts)
    unit = byte_axis(rows["whole"])
    chart = bar_chart(drawn, rows, [], unit, f"host memory of one rank ({unit.name})", rows["capacity_bytes"][:0])
    title = "What offloading keeps on the host"
    caption = (
        "Host memory by category at its peak in a steady step, on the rank where it is largest; interpreter, libraries"
        " and what malloc keeps are left out." + _ending(rows, parts)
    )
    return Figure("memory-of-host", title, caption, svg(chart, "memory-of-host", title), _table(drawn, unit))


def _chosen(parts: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The trials that are drawn, a row each, and their parts."""
    rows = parts.groupby("trial", sort=False).first()
    rows["drawn"] = parts.groupby("trial", sort=False)["end"].max()
    chosen = most_telling(rows, rows["whole"])
    return chosen, parts[parts["trial"].isin(chosen.index)]


def _ending(rows: pd.DataFrame, parts: pd.DataFrame) -> str:
    """What a caption ends with."""
    left_out = shown_sentence(len(rows), parts["trial"].nunique())
    return evidence_sentence(rows) + doubt_sentence(rows) + left_out


def stacked(frames: RunFrames, place: str, without: Sequence[str] = ()) -> pd.DataFrame:
    """One row for each part: columns of its trial, `group`, `category`, `bytes`, `start`, `end` (bytes from the axis),
    and `whole`, the peak that the parts add up to, but for the categories `without`.

    A part below zero (resident memory that was never touched) is in the whole and is not stacked.
    """
    trials = completed(prepared(frames.trials))
    peaks = frames.peaks[(frames.peaks["place"] == place) & ~frames.peaks["category"].isin(list(without))]
    parts = peaks.merge(trials[_OF_BAR], on=KEY, how="inner")
    parts["trial"] = parts["position"]
    parts["group"] = parts["category"].map(palette.GROUP_OF)
    order = {group: index for index, group in enumerate(palette.CATEGORY_COLOURS)}
    parts["order"] = parts["group"].map(order)
    parts = parts.sort_values(["position", "order"], kind="stable").reset_index(drop=True)
    parts["bytes"] = parts["bytes"].astype("int64")
    drawn = parts["bytes"].clip(lower=0)
    parts["end"] = drawn.groupby(parts["trial"]).cumsum()
    parts["start"] = parts["end"] - drawn
    parts["whole"] = parts.groupby("trial")["bytes"].transform("sum")
    return parts


def _failed(frames: RunFrames) -> list[dict[str, Any]]:
    """Trials that ended for want of device memory, as rows without a bar."""
    trials = prepared(frames.trials)
    failed = trials[(trials["status"] == "out_of_device_memory").astype(bool)].head(5)
    return [{"name": row["name"], "text": "did not fit: out of device memory"} for _, row in failed.iterrows()]


def _capacity_sentence(capacity: pd.Series[int], *, is_seen: bool) -> str:
    if capacity.empty:
        return ""
    sizes = " or ".join(format_bytes(size) for size in sorted(set(capacity.astype("int64"))))
    if is_seen:
        return (
            f" The upright line is the memory of one device: {sizes}; start-up, the allocator's reserve, CUDA context"
            " and NCCL may need more than a bar shows."
        )
    return f" One device holds {sizes}, far to the right of what is drawn."


def _title(parts: pd.DataFrame) -> str:
    """What the largest peak is mostly made of."""
    largest = parts[parts["trial"] == parts["trial"].iloc[int(parts["whole"].argmax())]]
    by_group = largest.groupby("group", sort=False)["bytes"].sum()
    name = palette.CATEGORY_NAMES[str(by_group.idxmax())]
    verb = "are" if name.endswith("s") else "is"
    part = share(by_group.max(), largest["whole"].iloc[0])
    return f"{name[0].upper()}{name[1:]} {verb} {part} of the largest device peak ({largest['label'].iloc[0]})"


def _table(parts: pd.DataFrame, unit: ByteAxis) -> pd.DataFrame:
    """A row for each trial that is drawn, a column for each category that any of them has."""
    table = pd.DataFrame({"trial": parts.drop_duplicates("trial")["name"].to_numpy()})
    wide = parts.pivot_table(index="trial", columns="category", values="bytes", aggfunc="sum", sort=False)
    table[f"peak ({unit.name})"] = [unit.show(size) for size in parts.drop_duplicates("trial")["whole"]]
    table["largest on rank"] = parts.drop_duplicates("trial")["rank"].astype(str).to_numpy()
    table["in phase"] = parts.drop_duplicates("trial")["phase"].astype(str).to_numpy()
    for category in dict.fromkeys(parts.sort_values("order", kind="stable")["category"]):
        table[f"{category.replace('_', ' ')} ({unit.name})"] = [unit.show(size) for size in wide[category]]
    return table
