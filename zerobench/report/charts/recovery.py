"""The page's table of checkpoints and faults."""

from zerobench.report.figure import Figure
from zerobench.report.figures.runs import RunFigures
from zerobench.report.render.columns import table_columns
from zerobench.report.tables.checkpoints import checkpoints_table


def figure(runs: RunFigures) -> Figure | None:
    """What saving, loading and going on cost; None where no trial saves."""
    table = checkpoints_table(runs.figures)
    if not table.lines:
        return None
    return Figure("checkpoints", "Checkpoints and faults", table.caption, None, table_columns(table))
