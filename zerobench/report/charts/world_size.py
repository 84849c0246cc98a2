"""Device memory over the number of ranks, both axes logarithmic: what sharding over more GPUs brings."""

from __future__ import annotations

import altair as alt
import pandas as pd

from zerobench.report.charts.memory_lines import memory_lines
from zerobench.report.charts.words import counted
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames

VARYING = ("num_nodes", "world_size")


def figure(frames: RunFrames) -> Figure | None:
    """Device peaks over the number of ranks; None where no two world sizes were run alike."""
    return memory_lines(
        frames,
        key="memory-over-world-size",
        x="world_size",
        varying=VARYING,
        axis=ranks_axis,
        words="the number of ranks",
        say=lambda value: counted(int(value), "rank"),
    )


def ranks_axis(sizes: pd.Series[float]) -> tuple[alt.Axis, float]:
    """A tick at each number of ranks, as far as they have room."""
    return alt.Axis(title="ranks", values=sorted(set(sizes)), format="d", labelOverlap=True), 1.0
