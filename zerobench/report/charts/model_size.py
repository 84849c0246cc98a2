"""Device memory over the number of parameters, both axes logarithmic: what a larger model would take."""

from __future__ import annotations

import altair as alt
import pandas as pd

from zerobench.report.charts.memory_lines import memory_lines
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.units import format_count


def figure(frames: RunFrames) -> Figure | None:
    """Device peaks over model size; None where no two models were run alike."""
    return memory_lines(
        frames,
        key="memory-over-model-size",
        x="num_params",
        varying=("model",),
        axis=_axis,
        words="model size",
        say=lambda value: f"{format_count(value)} parameters",
    )


def _axis(sizes: pd.Series[float]) -> tuple[alt.Axis, float]:
    """Billions where the largest model has one, else millions."""
    word, size = ("billions", 1e9) if sizes.max() >= 1e9 else ("millions", 1e6)
    return alt.Axis(title=f"parameters of the model ({word})", format="~g", tickCount=8, labelOverlap=True), size
