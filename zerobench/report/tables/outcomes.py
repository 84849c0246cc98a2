"""The trials that did not complete, skipped ones included, each with its reason."""

from collections import Counter
from collections.abc import Iterable, Sequence

from zerobench.common.units import counted, format_seconds
from zerobench.common.vocabulary import Status
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, lines_of
from zerobench.report.words.column_units import MISSING

TITLE = "Trials that did not complete"
SKIPPED_TITLE = "Skipped trials"
BOTH_TITLE = "Trials skipped or not completed"
HOW_TO_READ = "In parentheses: the rule that skips it."


def outcomes_table(trials: Sequence[TrialFigures]) -> Table[TrialFigures]:
    """A row for each trial that did not complete."""
    lines = lines_of(trials, lambda trial: [] if trial.is_completed else [trial])
    job = Column[TrialFigures]("Slurm job", lambda row: row.job or MISSING, narrow="job", is_text=True)
    after = Column[TrialFigures](
        "after", lambda row: format_seconds(row.took_s) if row.took_s is not None else MISSING, narrow="after"
    )
    are_skipped = {line.figures.status is Status.SKIPPED for line in lines}
    title = BOTH_TITLE if len(are_skipped) > 1 else SKIPPED_TITLE if are_skipped == {True} else TITLE
    columns: list[Column[TrialFigures]] = [
        Column("status", lambda row: row.status.words, narrow="status", is_text=True),
        *([after] if any(line.figures.took_s is not None for line in lines) else []),
        *([job] if any(line.figures.job for line in lines) else []),
        Column("why", lambda row: row.why or MISSING, narrow="why", is_text=True),
    ]
    return Table(title, HOW_TO_READ, columns, lines)


def outcome_counts(trials: Sequence[TrialFigures]) -> str:
    """`12 trials: 9 completed, 2 timeout, 1 skipped`."""
    return f"{counted(len(trials), 'trial')}: {tally(trial.status.words for trial in trials)}"


def tally(values: Iterable[str]) -> str:
    """Number of each value, in the order of first sight: `9 completed, 2 skipped`."""
    return ", ".join(f"{count:,} {value}" for value, count in Counter(values).items()) or MISSING
