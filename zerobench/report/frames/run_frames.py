"""The figures of one run or several as tidy pandas frames, each made when it is first asked for: for CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import pyarrow as pa

from zerobench import store
from zerobench.report.figures.runs import RunFigures, run_figures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.frames import schema
from zerobench.report.frames.rows import Row, error_columns, keys_of, summary_values
from zerobench.report.frames.tidy_tables import rows_table, to_pandas, with_keys


@dataclass(frozen=True, kw_only=True)
class RunFrames(RunFigures):
    """The figures, and frames of them; (run_id, trial_id) is the key everywhere. Columns and dtypes: schema.py."""

    @property
    def environments(self) -> Mapping[str, Mapping[str, Any]]:
        """environment.json of each run, by run_id."""
        return {run.run_id: run.environment for run in self.runs}

    @cached_property
    def trials(self) -> pd.DataFrame:
        """schema.SUMMARY: one row for each trial that ended, in the runs' order."""
        return _frame(schema.SUMMARY, map(_summary_row, self.figures))

    @cached_property
    def peaks(self) -> pd.DataFrame:
        """schema.PEAKS."""
        return self._of_each(schema.PEAKS, _peak_rows)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """schema.RANKS."""
        return self._of_each(schema.RANKS, _rows_of(schema.RANKS, lambda one: one.ranks))

    @cached_property
    def phases(self) -> pd.DataFrame:
        """schema.PHASES."""
        return self._of_each(schema.PHASES, _rows_of(schema.PHASES, lambda one: one.phases))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """schema.STEPS."""
        return self._of_each(schema.STEPS, _rows_of(schema.STEPS, lambda one: one.steps))

    @cached_property
    def notes(self) -> pd.DataFrame:
        """schema.NOTES."""
        return self._of_each(schema.NOTES, _rows_of(schema.NOTES, lambda one: one.notes))

    @cached_property
    def errors(self) -> pd.DataFrame:
        """schema.ERRORS: predictions beside what measured the same work in the same run."""
        types = schema.arrow_schema(schema.ERRORS)
        tables = [with_keys(_keys(one.trial), error_columns(one.cells, one.against), types) for one in self.predicted]
        return to_pandas(pa.concat_tables([types.empty_table(), *tables]))

    def _of_each(self, columns: Mapping[str, str], rows: Callable[[TrialFigures], Iterable[Row]]) -> pd.DataFrame:
        keyed = ({"run_id": one.run_id, "trial_id": one.trial_id, **row} for one in self.figures for row in rows(one))
        return _frame(columns, keyed)


def run_frames(runs: Sequence[store.Run]) -> RunFrames:
    """The figures of `runs`, with frames; raises as `run_figures` does."""
    found = run_figures(runs)
    return RunFrames(runs=found.runs, figures=found.figures, comparison=found.comparison, predicted=found.predicted)


def _frame(columns: Mapping[str, str], rows: Iterable[Row]) -> pd.DataFrame:
    return to_pandas(rows_table(columns, rows))


def _rows_of(
    columns: Mapping[str, str], figures: Callable[[TrialFigures], Sequence[Any]]
) -> Callable[[TrialFigures], Iterator[Row]]:
    """Rows whose columns are attributes of what `figures` has."""
    names = [name for name in columns if name not in {"run_id", "trial_id"}]
    return lambda one: ({name: getattr(found, name) for name in names} for found in figures(one))


def _peak_rows(one: TrialFigures) -> Iterator[Row]:
    for place, instant in one.peaks:
        where = {"rank": instant.rank, "place": place.value, "phase": instant.phase.value}
        yield from ({**where, "category": c.value, "bytes": size} for c, size in instant.categories.items())


def _keys(one: TrialFigures) -> Row:
    return keys_of(one.spec, one.run_id, one.summary.config_hash, one.summary.num_params)


def _summary_row(one: TrialFigures) -> Row:
    return {**_keys(one), **summary_values(one.summary, one.parity), "label": one.label}
