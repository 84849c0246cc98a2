"""The tidy tables of trials that are at hand."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import pyarrow as pa

from zerobench.report.figures.runs import prediction_pairs
from zerobench.report.frames import schema
from zerobench.report.frames.tidy_tables import TrialRows, errors_table, memory_table, to_pandas
from zerobench.report.parity import ParityJudge
from zerobench.report.trials import Trial


def memory_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `memory`."""
    empty = schema.arrow_schema(schema.MEMORY).empty_table()
    return to_pandas(pa.concat_tables([empty, *map(memory_table, trials)]))


def errors_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `errors`."""
    known, empty = list(trials), schema.arrow_schema(schema.ERRORS).empty_table()
    return to_pandas(pa.concat_tables([empty, *map(errors_table, prediction_pairs(known, ParityJudge(known)))]))


def trials_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `trials`; `energy_joules`, which takes the samples, stays empty."""
    rows = TrialRows()
    for trial in trials:
        rows.add(trial, energy_joules=None)
    return to_pandas(rows.table())
