"""Device memory over the number of ranks, both axes logarithmic: what sharding over more GPUs brings."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from zerobench.report.charts.memory_lines import memory_lines
from zerobench.report.figure import Figure
from zerobench.report.figures.runs import RunFigures
from zerobench.units import counted

VARYING = ("num_nodes", "world_size")


def figure(runs: RunFigures) -> Figure | None:
    """Device peaks over the number of ranks; None where no two world sizes were run alike."""
    return memory_lines(
        runs,
        key="memory-over-world-size",
        x=lambda summary: summary.spec.world_size,
        varying=VARYING,
        axis=ranks_axis,
        words="the number of ranks",
        say=lambda value: counted(int(value), "rank"),
    )


def ranks_axis(sizes: Sequence[float]) -> tuple[alt.Axis, float]:
    """A tick at each number of ranks, as far as they have room."""
    return alt.Axis(title="ranks", values=sorted(set(sizes)), format="d", labelOverlap=True), 1.0
