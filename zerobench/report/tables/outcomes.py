"""The trials that did not complete, skipped ones included, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.report.column_units import MISSING
from zerobench.report.figures.summary import Summary
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, lines_of
from zerobench.units import format_seconds

TITLE = "Trials that did not complete"
HOW_TO_READ = "Skipped trials name the rule they violate."


def outcomes_table(trials: Sequence[TrialFigures]) -> Table[Summary]:
    """A row for each trial that did not complete."""
    lines = lines_of(trials, lambda trial: [] if trial.summary.is_completed else [trial.summary])
    job = Column[Summary]("Slurm job", lambda row: row.job or MISSING, narrow="job", is_text=True)
    columns = [
        Column[Summary]("status", status_text, narrow="status", is_text=True),
        Column[Summary](
            "after", lambda row: format_seconds(row.took_s) if row.took_s is not None else MISSING, narrow="after"
        ),
        *([job] if any(line.figures.job for line in lines) else []),
        Column[Summary]("why", lambda row: row.why or MISSING, narrow="why", is_text=True),
    ]
    return Table(TITLE, HOW_TO_READ, columns, lines)


def status_text(row: Summary) -> str:
    """A status in words."""
    return row.status.value.replace("_", " ")
