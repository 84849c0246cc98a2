"""Results of Python's calls, as shown: lines at a prompt, tables in a notebook."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import pandas as pd

from zerobench.common.units import counted
from zerobench.config.derived.cluster import Cluster
from zerobench.records.store import Run
from zerobench.report.explain.decided import Decided
from zerobench.report.figures.energy import energies
from zerobench.report.figures.run.runs import run_figures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.grid import Grid, table_grid
from zerobench.report.tables.memory import device_table
from zerobench.report.tables.model import Table
from zerobench.report.tables.outcomes import outcomes_table
from zerobench.report.tables.plan_answer import answer, one_answer, plan_table
from zerobench.report.tables.plan_memory import memory_tables
from zerobench.report.tables.speed import speed_table


def plan_lines(made: Decided, cluster: Cluster) -> list[str]:
    """The recommendation, as the command prints it."""
    if not made.rows:
        return ["No configuration could be predicted."]
    reply = answer(made, cluster, ())
    return [reply.title, *reply.first, *reply.rest]


def plan_html(made: Decided, cluster: Cluster) -> str:
    """The same, and the table of all that was tried."""
    return _html(plan_lines(made, cluster), [plan_table(made.rows)])


def row_lines(row: TrialFigures, cluster: Cluster) -> list[str]:
    """Verdict, room and expected speed of one configuration."""
    reply = one_answer(row, cluster)
    return [reply.title, *reply.first]


def row_html(row: TrialFigures, cluster: Cluster) -> str:
    """The same, and its memory by category."""
    return _html(row_lines(row, cluster), memory_tables([row], cluster))


def run_line(run: Run) -> str:
    """The run and its number of trials."""
    return f"{run.run_id}: {counted(len(run.plan.trials), 'trial')}, in {run.folder.path}"


def run_html(run: Run) -> str:
    """The same, and the tables of memory, speed and outcomes."""
    figures = run_figures([run]).figures
    tables: list[Table[Any]] = [device_table(figures), speed_table(figures, energies(run)), outcomes_table(figures)]
    return _html([run_line(run)], tables)


def _html(lines: Sequence[str], tables: Iterable[Table[Any]]) -> str:
    first, *rest = map(escape, lines)
    shown = (_table(table.title, table_grid(table)) for table in tables if table.lines)
    return "\n".join([f"<p>{'<br>'.join([f'<b>{first}</b>', *rest])}</p>", *shown])


def _table(title: str, grid: Grid) -> str:
    frame = pd.DataFrame([list(row.cells) for row in grid.rows], columns=[head.text for head in grid.headers])
    return f"<p><b>{escape(title)}.</b> {escape(grid.caption)}</p>\n{frame.to_html(index=False)}"
