"""How far the ranks of a trial lie from each other, the odd one named; never their sum or mean.

A server is no rank among others, and is left out.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from zerobench.report.charts.marks import SIDES
from zerobench.report.charts.render import WIDTH, Specification, data, layered, svg
from zerobench.report.charts.shown import KEY, MOST_ROWS, completed, doubt_sentence, prepared
from zerobench.report.charts.words import ByteAxis, byte_axis
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.stats import RankSpread, spread_over_ranks
from zerobench.spec.roles import Role
from zerobench.units import format_bytes

_KEY = "spread-over-ranks"
_ROW_HEIGHT = 22


def figure(frames: RunFrames) -> Figure | None:
    """Each rank's device peak beside the median rank's; None where no trial had two ranks."""
    found = spreads(frames)
    if not found:
        return None
    title = "Spread of the device peak over ranks"
    uneven = [(trial, spread) for trial, spread in found if spread.odd_rank is not None]
    if not uneven:
        caption = f"In each of the {len(found)} trials with several ranks, all ranks have the same device peak."
        return Figure(_KEY, title, caption, None, _table(found, byte_axis([spread.median for _, spread in found])))
    widest = sorted(uneven, key=lambda one: -_reach(one[1]))[:MOST_ROWS]
    shown = sorted(widest, key=lambda one: int(one[0]["position"]))
    unit = byte_axis([_reach(spread) for _, spread in shown])
    drawn = _chart(frames, shown, unit)
    caption = (
        "Peak of each rank in the steady step, less the median rank's; the rank farthest from the median is named."
        f" {_even_sentence(len(found) - len(uneven))}"
    )
    if len(uneven) > len(shown):
        caption += f" Of {len(uneven):,} uneven trials the {len(shown)} widest are drawn."
    caption += doubt_sentence(pd.DataFrame([trial for trial, _ in shown]))
    return Figure(
        _KEY, title, caption.strip(), svg(drawn, _KEY, title), _table(shown, byte_axis([s.maximum for _, s in shown]))
    )


def spreads(frames: RunFrames) -> list[tuple[pd.Series[Any], RankSpread]]:
    """The spread of the steady device peak of each completed trial with two ranks or more, in the frame's order."""
    trials = completed(prepared(frames.trials)).set_index(KEY, drop=False)
    ranks = frames.ranks[frames.ranks["device_peak_bytes"].notna() & (frames.ranks["role"] != Role.SERVER.value)]
    by_trial = {key: group for key, group in ranks.groupby(KEY, sort=False) if len(group) > 1}
    found = []
    for key, trial in trials.iterrows():
        if key in by_trial:
            group = by_trial[key]
            spread = spread_over_ranks(dict(zip(group["rank"], group["device_peak_bytes"].astype(int), strict=True)))
            found += [(trial, spread)] if spread is not None else []
    return found


def _reach(spread: RankSpread) -> float:
    return max(spread.maximum - spread.median, spread.median - spread.minimum)


def _even_sentence(number: int) -> str:
    return "" if not number else f"In {number:,} more all ranks have the same."


def _chart(frames: RunFrames, shown: list[tuple[pd.Series[Any], RankSpread]], unit: ByteAxis) -> Specification:
    names = [str(trial["name"]) for trial, _ in shown]
    spans: list[dict[str, Any]] = [
        {
            "name": name,
            "start": unit.of(spread.minimum - spread.median),
            "end": unit.of(spread.maximum - spread.median),
            "said": f"{name}: from {format_bytes(spread.minimum)} to {format_bytes(spread.maximum)},"
            f" median {format_bytes(spread.median)}",
        }
        for name, (_, spread) in zip(names, shown, strict=True)
    ]
    low, high = min(row["start"] for row in spans), max(row["end"] for row in spans)
    room = (high - low) * 0.12
    x = alt.X(
        "start:Q",
        title=f"device peak less the median rank's ({unit.name})",
        scale=alt.Scale(domain=[low - room, high + room * 1.6], nice=False),
    )
    y = alt.Y("name:N", title=None, sort=None, scale=alt.Scale(domain=names))
    rules = alt.Chart(data(spans)).mark_bar(height=4, color="var(--muted)", opacity=0.6)
    zero = alt.Chart(data([{"start": 0.0}])).mark_rule(color="var(--ink)", strokeWidth=1, aria=False)
    points = [row for trial, spread in shown for row in _points(frames, trial, spread, unit)]
    odd = [row for row in points if row["text"]]
    layers = [rules.encode(x=x, x2=alt.X2("end:Q"), y=y, description=alt.Description("said:N")), zero.encode(x=x)]
    layers.append(
        alt.Chart(data(points))
        .mark_point(size=60, strokeWidth=1.4, opacity=1, stroke="var(--ink)")
        .encode(x=x, y=y, fill=alt.Fill("fill:N", scale=None), description=alt.Description("said:N"))
    )
    for align, dx, is_right in SIDES:
        texts = alt.Chart(data([row for row in odd if row["is_right"] == is_right]))
        layers.append(texts.mark_text(align=align, dx=dx, fontSize=11).encode(x=x, y=y, text=alt.Text("text:N")))
    width = WIDTH - min(340.0, 6.6 * max(map(len, names))) - 24
    return layered(layers, width, _ROW_HEIGHT * len(names))


_MOST_RANKS = 64
"""Ranks of a trial that have a point each; of more, the odd one, the least and the most."""


def _points(frames: RunFrames, trial: pd.Series[Any], spread: RankSpread, unit: ByteAxis) -> list[dict[str, Any]]:
    ranks = frames.ranks
    own = ranks[(ranks["run_id"] == trial["run_id"]) & (ranks["trial_id"] == trial["trial_id"])]
    own = own[own["device_peak_bytes"].notna() & (own["role"] != Role.SERVER.value)]
    if len(own) > _MOST_RANKS:
        peaks = own["device_peak_bytes"]
        own = own[(own["rank"] == spread.odd_rank) | (peaks == peaks.min()) | (peaks == peaks.max())]
        own = own.drop_duplicates("device_peak_bytes", keep="first") if len(own) > _MOST_RANKS else own
    rows = []
    for rank, size in zip(own["rank"], own["device_peak_bytes"], strict=True):
        is_odd = bool(rank == spread.odd_rank)
        rows.append(
            {
                "name": str(trial["name"]),
                "start": unit.of(size - spread.median),
                "fill": "var(--limit)" if is_odd else "var(--paper)",
                "text": f"rank {rank}" if is_odd else "",
                "is_right": bool(size >= spread.median),
                "said": f"{trial['name']}, rank {rank}: {format_bytes(size)}{', the odd one' if is_odd else ''}",
            }
        )
    return rows


def _table(found: list[tuple[pd.Series[Any], RankSpread]], unit: ByteAxis) -> pd.DataFrame:
    less = byte_axis([_reach(spread) for _, spread in found])
    return pd.DataFrame(
        [
            {
                "trial": str(trial["name"]),
                f"least ({unit.name})": unit.show(spread.minimum),
                f"median ({unit.name})": unit.show(spread.median),
                f"most ({unit.name})": unit.show(spread.maximum),
                "odd rank": "-" if spread.odd_rank is None else str(spread.odd_rank),
                f"odd less median ({less.name})": less.show(
                    None if spread.odd_value is None else spread.odd_value - spread.median
                ),
            }
            for trial, spread in found
        ]
    )
