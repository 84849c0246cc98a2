"""The figures of one run or several as tidy pandas frames, each made when it is first asked for: for CSV and JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import pandas as pd

from zerobench.records import store
from zerobench.report.export import schema
from zerobench.report.export.rows import PARTS, Row, error_rows, summary_row
from zerobench.report.export.tidy_tables import rows_table, to_pandas
from zerobench.report.figures.run.runs import RunFigures, run_figures


def _of_each(name: str) -> cached_property[pd.DataFrame]:
    """The table of PARTS that is called so, keyed."""
    columns, rows = PARTS[name]

    def frame(runs: RunFigures) -> pd.DataFrame:
        keys = ((trial, {"run_id": trial.run_id, "trial_id": trial.trial_id}) for trial in runs.figures)
        return _frame(columns, (key | row for trial, key in keys for row in rows(trial)))

    return cached_property(frame)


def _frame(columns: Mapping[str, str], rows: Iterable[Row]) -> pd.DataFrame:
    return to_pandas(rows_table(columns, rows))


@dataclass(frozen=True, kw_only=True)
class RunFrames(RunFigures):
    """The figures, and frames of them; (run_id, trial_id) is the key everywhere. Columns and dtypes: schema.py."""

    @cached_property
    def trials(self) -> pd.DataFrame:
        """schema.SUMMARY: one row for each trial that ended, in the runs' order."""
        return _frame(schema.SUMMARY, map(summary_row, self.figures))

    @cached_property
    def errors(self) -> pd.DataFrame:
        """schema.ERRORS: predictions beside what measured the same work in the same run."""
        return _frame(schema.ERRORS, chain.from_iterable(map(error_rows, self.predicted)))

    peaks, ranks, phases, steps = (_of_each(name) for name in ("peaks", "ranks", "phases", "steps"))


def run_frames(runs: Sequence[store.Run]) -> RunFrames:
    """The figures of `runs`, with frames; raises as `run_figures` does."""
    return frames_of(run_figures(runs))


def frames_of(runs: RunFigures) -> RunFrames:
    """`runs` with frames."""
    return RunFrames(**vars(runs))
