"""Device memory along one axis: what the charts over model size and over world size share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import altair as alt
import pandas as pd

from zerobench.report.charts import lines, series
from zerobench.report.charts.marks import strategies_sentence
from zerobench.report.charts.render import svg
from zerobench.report.charts.shown import completed, doubt_sentence, evidence_sentence, prepared
from zerobench.report.charts.words import ByteAxis, byte_axis
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.units import format_bytes

_CAPACITY_REACH = 20
"""A capacity further than this many times above the largest peak is not drawn."""


def memory_lines(
    frames: RunFrames,
    *,
    key: str,
    x: str,
    varying: Sequence[str],
    axis: Callable[[pd.Series[float]], tuple[alt.Axis, float]],
    words: str,
    say: Callable[[float], str],
) -> Figure | None:
    """The device's largest peak over column `x`; None where no line has two points.

    `axis` makes the axis for the values that are drawn, and says what they are counted in; `say` puts one in words.
    """
    trials = completed(prepared(frames.trials))
    trials = trials[(trials["device_peak_bytes"] > 0).fillna(value=False).astype(bool)].copy()
    trials["y"] = trials["device_peak_bytes"].astype(float)
    shown, number = series.with_series(trials, x, varying)
    if shown.empty:
        return None
    unit = byte_axis(shown["y"])
    capacity = sorted({float(size) for size in shown["capacity_bytes"].dropna()})
    rules = [
        (unit.of(size), f"capacity of one device: {format_bytes(size)}")
        for size in capacity[:2]
        if size < _CAPACITY_REACH * shown["y"].max()
    ]
    shown["bytes"], shown["y"] = shown["device_peak_bytes"], shown["y"] / unit.size
    shown["said"] = [
        f"{row['name']}, {say(row[x])}: {format_bytes(row['bytes'])} at the peak" for _, row in shown.iterrows()
    ]
    y_axis = alt.Axis(title=f"peak memory of one device ({unit.name})", format="~g", tickCount=6)
    x_axis, x_size = axis(shown[x].astype(float))
    drawn = lines.chart(shown, x, x_axis, y_axis, x_size=x_size, rules=rules)
    title = f"Device memory over {words}"
    more = series.left_out_sentence(shown, number)
    caption = (
        "Largest peak of any rank, start-up included; both axes are logarithmic. "
        + strategies_sentence(shown)
        + " Lines join trials that are alike in all else."
        + evidence_sentence(shown)
        + doubt_sentence(shown)
        + more
    )
    return Figure(key, title, caption, svg(drawn, key, title), _table(shown, x, words, unit))


def _table(shown: pd.DataFrame, x: str, words: str, unit: ByteAxis) -> pd.DataFrame:
    ordered = shown.sort_values(["series", x], kind="stable")
    return pd.DataFrame(
        {
            "line": ordered["series_name"].to_numpy(),
            "trial": ordered["name"].to_numpy(),
            words.removeprefix("the "): [f"{value:,}" for value in ordered[x]],
            f"peak ({unit.name})": [unit.show(size) for size in ordered["bytes"]],
            "evidence": ordered["evidence"].to_numpy(),
        }
    )
