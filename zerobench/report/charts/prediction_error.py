"""Predicted against measured peaks: the identity line, and beside it how often which error occurs."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from zerobench.report.charts.render import WIDTH, Specification, arranged, data, layered, svg
from zerobench.report.charts.shown import KEY, prepared
from zerobench.report.charts.words import ByteAxis, byte_axis, counted
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.units import format_bytes

_KEY = "predicted-against-measured"
_PLACES = {"device": ("var(--category-parameters)", "circle"), "host": ("var(--category-gradients)", "square")}
_MOST_BINS = 21


def figure(frames: RunFrames) -> Figure | None:
    """Each prediction's largest steady peaks beside the measured ones; None where nothing was both."""
    found = largest_peaks(frames)
    if found.empty:
        return None
    unit = byte_axis(found["measured_bytes"].astype(float))
    drawn = arranged([_scatter(found, unit), _histogram(found)], 2, 34)
    errors = found["error"].astype(float).abs()
    worst = found.iloc[int(errors.argmax())]
    medians = errors.groupby(found["evidence"], sort=False).median()
    by_world = ", ".join(f"{name} {_percent(float(median))}" for name, median in medians.items())
    off = by_world if len(medians) > 1 else _percent(float(errors.median()))
    title = f"Predicted peaks lie {off} off those measured (median)"
    caption = (
        f"{counted(len(found), 'peak')} of a steady step, each the phase that was measured as the largest, beside the"
        " prediction of the same work; on the line both are equal. Beside it, how many lie how far off, below 0 where"
        f" the prediction is too small. The worst: {_percent(float(worst['error']), signed=True)} ({worst['name']},"
        f" {worst['place']})."
    )
    return Figure(_KEY, title, caption, svg(drawn, _KEY, title), _table(found, unit))


def largest_peaks(frames: RunFrames) -> pd.DataFrame:
    """Of each prediction and place the steady phase with the largest measured total, with the trial's `name`."""
    errors = frames.errors
    wanted = {"category": "total", "quantity": "peak", "step": "steady"}
    for column, value in wanted.items():
        errors = errors[(errors[column] == value).fillna(value=False).astype(bool)]
    errors = errors[errors["place"].isin(list(_PLACES)) & errors["error"].notna() & (errors["measured_bytes"] > 0)]
    errors = errors[errors["predicted_bytes"] > 0].sort_values("measured_bytes", ascending=False, kind="stable")
    largest = errors.drop_duplicates([*KEY, "rank", "place"])
    names = prepared(frames.trials)[[*KEY, "name", "position"]]
    return largest.merge(names, on=KEY).sort_values(["position", "place"], kind="stable").reset_index(drop=True)


def _scatter(found: pd.DataFrame, unit: ByteAxis) -> Specification:
    rows: list[dict[str, Any]] = [
        {
            "x": unit.of(row["measured_bytes"]),
            "y": unit.of(row["predicted_bytes"]),
            "place": str(row["place"]),
            "said": f"{row['name']}, {row['place']}: measured {format_bytes(row['measured_bytes'])}, predicted"
            f" {format_bytes(row['predicted_bytes'])}, {_percent(float(row['error']), signed=True)}",
        }
        for _, row in found.iterrows()
    ]
    ends = [value for row in rows for value in (row["x"], row["y"])]
    reach = [min(ends) / 1.3, max(ends) * 1.3]
    scale = alt.Scale(type="log", domain=reach, nice=False)
    axis = alt.Axis(format="~g", tickCount=6, labelOverlap=True)
    x = alt.X("x:Q", title=f"measured peak ({unit.name})", scale=scale, axis=axis)
    y = alt.Y("y:Q", title=f"predicted peak ({unit.name})", scale=scale, axis=axis)
    present = [place for place in _PLACES if (found["place"] == place).any()]
    colour = alt.Stroke(
        "place:N", title=None, scale=alt.Scale(domain=present, range=[_PLACES[place][0] for place in present])
    )
    shape = alt.Shape(
        "place:N", title=None, scale=alt.Scale(domain=present, range=[_PLACES[place][1] for place in present])
    )
    identity = alt.Chart(data([{"x": end, "y": end} for end in reach]))
    line = identity.mark_line(color="var(--muted)", strokeWidth=1.2, aria=False).encode(x=x, y=y)
    dots = alt.Chart(data(rows)).mark_point(size=55, strokeWidth=1.6, opacity=0.9)
    points = dots.encode(x=x, y=y, stroke=colour, shape=shape, description=alt.Description("said:N"))
    return layered([line, points], 400, 360)


def _histogram(found: pd.DataFrame) -> Specification:
    """Errors in bins of a round width, zero in the middle of one."""
    percent = 100 * found["error"].astype(float).to_numpy()
    width = bin_width(float(np.abs(percent).max()))
    bins = np.rint(percent / width).astype(int)
    values, counts = np.unique(bins, return_counts=True)
    rows = [
        {
            "start": (float(at) - 0.5) * width,
            "end": (float(at) + 0.5) * width,
            "count": int(count),
            "said": f"{counted(int(count), 'peak')} from {(at - 0.5) * width:+g} % to {(at + 0.5) * width:+g} % off",
        }
        for at, count in zip(values, counts, strict=True)
    ]
    reach = (int(np.abs(bins).max()) + 1) * width
    x = alt.X("start:Q", title="error (%)", scale=alt.Scale(domain=[-reach, reach], nice=False))
    y = alt.Y("count:Q", title="peaks", axis=alt.Axis(format="d", tickMinStep=1))
    bars = alt.Chart(data(rows)).mark_bar(color="var(--category-buffers)", stroke="var(--ink)", strokeWidth=0.7)
    zero = alt.Chart(data([{"start": 0.0}])).mark_rule(color="var(--muted)", strokeWidth=1.2, aria=False)
    said = alt.Description("said:N")
    columns = bars.encode(x=x, x2=alt.X2("end:Q"), y=y, y2=alt.Y2Datum(0), description=said)
    return layered([columns, zero.encode(x=x)], WIDTH - 400 - 34 - 130, 360)


def bin_width(largest: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten with which errors up to `largest` take at most _MOST_BINS bins."""
    least = max(2 * largest / _MOST_BINS, 1e-6)
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= least))


def _percent(error: float, *, signed: bool = False) -> str:
    percent = 100 * error
    digits = 1 if abs(percent) >= 1 or percent == 0 else 2
    return f"{percent:+.{digits}f} %" if signed else f"{percent:.{digits}f} %"


def _table(found: pd.DataFrame, unit: ByteAxis) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "trial": found["name"].to_numpy(),
            "place": found["place"].to_numpy(),
            "rank": found["rank"].astype(str).to_numpy(),
            "phase": found["phase"].to_numpy(),
            f"measured ({unit.name})": [unit.show(size) for size in found["measured_bytes"]],
            f"predicted ({unit.name})": [unit.show(size) for size in found["predicted_bytes"]],
            "error": [_percent(float(error), signed=True) for error in found["error"]],
        }
    )
