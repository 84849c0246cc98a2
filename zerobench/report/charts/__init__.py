"""The report's charts: from the figures of a run to static SVG, each with the same figures as a table.

    for figure in figures(run_figures([load_run(path)])):
        print(figure.title, figure.table)

Drawn by Vega-Lite through altair and vl-convert, so the page that shows them needs no chart library. One file a chart;
colours are CSS variables (report/words/palette.py), which the page declares.
"""

from collections.abc import Callable, Iterator, Sequence

from zerobench.report.charts import (
    bars,
    batch_ramp,
    course,
    efficiency,
    memory_lines,
    model_states,
    offload_traffic,
    pareto,
    prediction_error,
    rank_spread,
    roofline,
    step_streams,
    strategies,
    timeline,
    waterfall,
)
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.tables.checkpoints import checkpoints_table
from zerobench.report.tables.figure import Figure
from zerobench.report.tables.grid import table_columns
from zerobench.report.words.palette import colours, resolved

__all__ = ["MAKERS", "checkpoints_figure", "colours", "figures", "resolved"]


def checkpoints_figure(runs: RunFigures) -> Figure | None:
    """Cost of saving, loading and resuming, as a table alone; None where no trial saves."""
    table = checkpoints_table(runs.figures)
    if not table.lines:
        return None
    return Figure("checkpoints", "Checkpoints and faults", table.caption, None, table_columns(table))


MAKERS: Sequence[Callable[[RunFigures], Figure | None]] = (
    bars.device_figure,
    course.figure,
    model_states.figure,
    bars.host_figure,
    memory_lines.model_size_figure,
    memory_lines.world_size_figure,
    timeline.figure,
    step_streams.figure,
    roofline.figure,
    waterfall.figure,
    pareto.figure,
    strategies.speed_figure,
    efficiency.weak_figure,
    efficiency.strong_figure,
    batch_ramp.figure,
    rank_spread.figure,
    checkpoints_figure,
    prediction_error.figure,
    offload_traffic.figure,
)


def figures(runs: RunFigures) -> Iterator[Figure]:
    """The charts that the trials allow, in the order in which they are read; those without data are left out.

    Raises:
        UserError: a file of NVML samples, or a record that a chart reads again, is corrupt.

    """
    for make in MAKERS:
        figure = make(runs)
        if figure is not None:
            yield figure
