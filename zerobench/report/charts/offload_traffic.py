"""What offloading costs: bytes per second to and from NVMe, and where the offloaded states lie."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from zerobench.report.charts import palette
from zerobench.report.charts.bars import stacked
from zerobench.report.charts.render import HATCH, WIDTH, Mark, Specification, arranged, data, layered, svg
from zerobench.report.charts.shown import (
    KEY,
    completed,
    doubt_sentence,
    evidence_sentence,
    most_telling,
    prepared,
    shown_sentence,
)
from zerobench.report.charts.words import ByteAxis, byte_axis, part_sentence
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames

_KEY = "offload-traffic"
_ROW_HEIGHT = 26
_DIRECTIONS = {"read": "nvme_read_bytes_per_s", "written": "nvme_write_bytes_per_s"}
_COLOURS = {"read": palette.category_colour("parameters"), "written": palette.category_colour("gradients")}
_PLACES = {"host": "var(--category-buffers)", "nvme": "var(--category-logits)"}
_RATE = 10**9
"""Disks are sold and measured in GB/s."""
_OF_PROCESS = ("rest_of_process", "unattributed")
"""On the host, but not there for the offload."""


def figure(frames: RunFrames) -> Figure | None:
    """Traffic and offloaded bytes of the trials that offload; None where none does."""
    trials = completed(prepared(frames.trials))
    offloading = trials[trials["offload"] != "none"]
    held = _held(frames, offloading)
    if offloading.empty or held.empty:
        return None
    size = held.groupby("position")["bytes"].sum().reindex(offloading["position"]).fillna(0)
    chosen = most_telling(offloading, size.set_axis(offloading.index))
    held = held[held["position"].isin(chosen["position"])]
    rates = _rates(chosen)
    unit = byte_axis(held.groupby("position")["bytes"].sum().astype(float))
    title = "Where offloaded states lie, and what moves to NVMe" if rates else "Where offloaded states lie"
    drawn = _chart(chosen, held, rates, unit)
    return Figure(
        _KEY, title, _caption(chosen, rates, len(offloading)), svg(drawn, _KEY, title), _table(chosen, held, unit)
    )


def _held(frames: RunFrames, trials: pd.DataFrame) -> pd.DataFrame:
    """Bytes that a rank keeps outside its device for its training, by trial and place."""
    host = stacked(frames, "host", without=_OF_PROCESS)
    # Nobody watches files between two phases, so what lies on NVMe is known at the phases' ends and has no peak.
    files = frames.phases[(frames.phases["place"] == "nvme") & (frames.phases["step"] == "steady")]
    nvme = files.groupby(KEY)["live_bytes"].max().rename("bytes").reset_index().merge(trials, on=KEY)
    parts = []
    for place, found in (("host", host), ("nvme", nvme)):
        kept = found[found["position"].isin(trials["position"])]
        parts.append(kept.groupby(["position", "name"], sort=False)["bytes"].sum().reset_index().assign(place=place))
    return pd.concat(parts, ignore_index=True)


def _rates(trials: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "name": row["name"],
            "direction": direction,
            "rate": float(row[column]) / _RATE,
            "said": f"{row['name']}: {float(row[column]) / _RATE:.3f} GB/s {direction}",
        }
        for _, row in trials.iterrows()
        for direction, column in _DIRECTIONS.items()
        if row["is_measured"] and not pd.isna(row[column])  # a simulated step takes no time of its own
    ]


def _chart(trials: pd.DataFrame, held: pd.DataFrame, rates: list[dict[str, Any]], unit: ByteAxis) -> Specification:
    names = list(trials["name"])
    room = WIDTH - min(340.0, 6.6 * max(map(len, names))) - 30
    y = alt.Y("name:N", title=None, sort=None, scale=alt.Scale(domain=names, paddingInner=0.3))
    height = _ROW_HEIGHT * len(names)
    if not rates:
        return layered(_places(trials, held, unit, y), room, height)
    places = layered(_places(trials, held, unit, y), room * 0.52, height)
    bare = alt.Y("name:N", title=None, sort=None, axis=None, scale=alt.Scale(domain=names, paddingInner=0.3))
    traffic = layered([_traffic(rates, bare)], room * 0.48 - 40, height)
    return arranged([places, traffic], 2, 30, fill="independent")


def _places(trials: pd.DataFrame, held: pd.DataFrame, unit: ByteAxis, y: alt.Y) -> list[Mark]:
    rows, hatched = [], []
    for _, trial in trials.iterrows():
        start = 0
        own = held[held["position"] == trial["position"]]
        whole = int(own["bytes"].sum())
        for place, size in zip(own["place"], own["bytes"], strict=True):
            said = part_sentence(str(trial["name"]), f"on {place}", size, whole).removesuffix(" of the peak")
            end = start + max(0, int(size))
            rows.append(
                {"name": trial["name"], "start": unit.of(start), "end": unit.of(end), "place": place, "said": said}
            )
            start = end
        over = {"name": trial["name"], "start": 0.0, "end": unit.of(start)}
        hatched.append({**over, "fill": "none" if trial["is_measured"] else HATCH})
    x = alt.X("start:Q", title=f"held outside the device, a rank ({unit.name})")
    present = [place for place in _PLACES if any(row["place"] == place and row["end"] > row["start"] for row in rows)]
    fill = alt.Fill(
        "place:N",
        title=None,
        scale=alt.Scale(domain=present, range=[_PLACES[place] for place in present]),
        legend=alt.Legend(symbolType="square"),
    )
    drawn = [row for row in rows if row["end"] > row["start"]]
    bars = alt.Chart(data(drawn)).mark_bar(stroke="var(--paper)", strokeWidth=0.7)
    above = alt.Chart(data(hatched)).mark_bar(stroke="var(--ink)", strokeWidth=0.8, aria=False)
    return [
        bars.encode(x=x, x2=alt.X2("end:Q"), y=y, fill=fill, description=alt.Description("said:N")),
        above.encode(x=alt.X("start:Q"), x2=alt.X2("end:Q"), y=y, fill=alt.Fill("fill:N", scale=None)),
    ]


def _traffic(rates: list[dict[str, Any]], y: alt.Y) -> Mark:
    fill = alt.Fill(
        "direction:N",
        title=None,
        scale=alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values())),
        legend=alt.Legend(symbolType="square"),
    )
    offset = alt.YOffset("direction:N", scale=alt.Scale(domain=list(_COLOURS)))
    bars = alt.Chart(data(rates)).mark_bar(stroke="var(--ink)", strokeWidth=0.7)
    x = alt.X("rate:Q", title="NVMe, all ranks (GB/s)")
    return bars.encode(x=x, y=y, yOffset=offset, fill=fill, description=alt.Description("said:N"))


def _caption(trials: pd.DataFrame, rates: list[dict[str, Any]], known: int) -> str:
    text = (
        "What one rank keeps for its training on the host (at its peak in a steady step) and on NVMe: states, pinned"
        " buffers, copies on their way."
    )
    if rates:
        text += " On the right the bytes that all ranks read and wrote in a step over its time, compute included."
    return text + evidence_sentence(trials) + doubt_sentence(trials) + shown_sentence(len(trials), known)


def _table(trials: pd.DataFrame, held: pd.DataFrame, unit: ByteAxis) -> pd.DataFrame:
    by_place = held.pivot_table(index="position", columns="place", values="bytes", aggfunc="sum")
    table = pd.DataFrame({"trial": trials["name"].to_numpy()})
    for place in _PLACES:
        sizes = by_place[place].reindex(trials["position"]) if place in by_place else [None] * len(trials)
        table[f"{place} ({unit.name})"] = [unit.show(size) for size in sizes]
    for direction, column in _DIRECTIONS.items():
        table[f"NVMe {direction} (GB/s)"] = [
            f"{float(rate) / _RATE:.3f}" if measured and not pd.isna(rate) else "-"
            for rate, measured in zip(trials[column], trials["is_measured"], strict=True)
        ]
    return table
