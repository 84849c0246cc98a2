"""Device memory over the number of parameters, both axes logarithmic: what a larger model would take."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from zerobench.report.charts.memory_lines import memory_lines
from zerobench.report.figure import Figure
from zerobench.report.figures.runs import RunFigures
from zerobench.units import format_count


def figure(runs: RunFigures) -> Figure | None:
    """Device peaks over model size; None where no two models were run alike."""
    return memory_lines(
        runs,
        key="memory-over-model-size",
        x=lambda summary: summary.num_params,
        varying=("model", "num_params"),
        axis=_axis,
        words="model size",
        say=lambda value: f"{format_count(value)} parameters",
    )


def _axis(sizes: Sequence[float]) -> tuple[alt.Axis, float]:
    """Billions where the largest model has one, else millions."""
    word, size = ("billions", 1e9) if max(sizes) >= 1e9 else ("millions", 1e6)
    return alt.Axis(title=f"model parameters ({word})", format="~g", tickCount=8, labelOverlap=True), size
