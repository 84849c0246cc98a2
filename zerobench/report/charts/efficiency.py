"""Scaling efficiency over the number of ranks: how much of the added GPUs arrives as throughput.

E(N) = (T(N) / N) / (T(M) / M), with T the throughput in tokens/s and M the fewest ranks of the same line. Under weak
scaling each rank keeps its batch; under strong scaling the global batch stays, so that T(N) / T(M) is the speed-up of
one fixed step (Hager and Wellein, "Introduction to High Performance Computing", section 5.3).
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from zerobench.report.charts import lines, series
from zerobench.report.charts.marks import strategies_sentence
from zerobench.report.charts.render import svg
from zerobench.report.charts.shown import completed, doubt_sentence, prepared
from zerobench.report.charts.words import counted
from zerobench.report.charts.world_size import VARYING, ranks_axis
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames

_BATCH = ("micro_batch_size", "gradient_accumulation_steps")


def weak_figure(frames: RunFrames) -> Figure | None:
    """Efficiency of trials whose batch per rank is the same; None where no two world sizes were timed alike."""
    return _figure(frames, "weak", VARYING, "the batch of each rank")


def strong_figure(frames: RunFrames) -> Figure | None:
    """Efficiency of trials whose global batch is the same; None where no two world sizes were timed alike."""
    return _figure(frames, "strong", (*VARYING, *_BATCH), "the global batch")


def _figure(frames: RunFrames, kind: str, varying: tuple[str, ...], fixed: str) -> Figure | None:
    found, number = efficiencies(frames, kind, varying)
    if found.empty:
        return None
    key = f"{kind}-scaling-efficiency"
    found["said"] = [
        f"{row['name']}: {row['percent']:.0f} % on {counted(int(row['world_size']), 'rank')},"
        f" {row['tokens_per_s']:,.0f} tokens/s"
        for _, row in found.iterrows()
    ]
    found["y"] = found["percent"]
    x_axis, _ = ranks_axis(found["world_size"].astype(float))
    y_axis = alt.Axis(title="efficiency (%)", tickCount=6)
    top = max(110.0, float(found["percent"].max()) * 1.05)
    drawn = lines.chart(found, "world_size", x_axis, y_axis, y_domain=(0.0, top), rules=[(100.0, "ideal: 100 %")])
    title = f"{kind.capitalize()} scaling efficiency"
    caption = (
        f"Throughput per GPU on N ranks over that on the fewest ranks of the same line; {fixed} is held fixed. "
        + strategies_sentence(found)
        + doubt_sentence(found)
        + series.left_out_sentence(found, number)
    )
    return Figure(key, title, caption, svg(drawn, key, title), _table(found))


def efficiencies(frames: RunFrames, kind: str, varying: tuple[str, ...]) -> tuple[pd.DataFrame, int]:
    """Trials on lines with `percent`, 100 on the fewest ranks of their line; and how many lines there are."""
    trials = completed(prepared(frames.trials))
    trials = trials[trials["tokens_per_s"].notna()].copy()
    trials["y"] = trials["tokens_per_s"].astype(float) / trials["world_size"].astype(float)
    batch = trials["micro_batch_size"] * trials["gradient_accumulation_steps"] * trials["world_size"]
    trials["global_batch_size"] = batch
    fixed = ("global_batch_size",) if kind == "strong" else ()
    found, number = series.with_series(trials, "world_size", varying, fixed)
    if found.empty:
        return found, number
    fewest = found["world_size"] == found.groupby("series")["world_size"].transform("min")
    base = found[fewest].groupby("series")["y"].median()
    found["percent"] = 100 * found["y"] / found["series"].map(base)
    return found.reset_index(drop=True), number


def _table(found: pd.DataFrame) -> pd.DataFrame:
    ordered = found.sort_values(["series", "world_size"], kind="stable")
    return pd.DataFrame(
        {
            "line": ordered["series_name"].to_numpy(),
            "trial": ordered["name"].to_numpy(),
            "ranks": [f"{size:,}" for size in ordered["world_size"]],
            "global batch": [f"{size:,}" for size in ordered["global_batch_size"]],
            "tokens/s": [f"{speed:,.1f}" for speed in ordered["tokens_per_s"]],
            "efficiency (%)": [f"{percent:.1f}" for percent in ordered["percent"]],
        }
    )
