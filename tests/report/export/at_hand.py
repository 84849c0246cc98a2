"""The tidy tables of trials that are at hand."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from zerobench.records.trials import Trial
from zerobench.report.export import schema
from zerobench.report.export.rows import key_values, memory_columns
from zerobench.report.export.tidy_tables import TrialRows, error_tables, to_pandas, with_keys
from zerobench.report.figures.parity import ParityJudge
from zerobench.report.figures.run.runs import prediction_pairs


def memory_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `memory`."""
    return to_pandas(memory_table(*trials))


def memory_table(*trials: Trial) -> Any:
    """The same as a pyarrow table."""
    types, rows = schema.arrow_schema(schema.MEMORY), [(key_values(one), memory_columns(one)) for one in trials]
    return with_keys(rows, types) if rows else types.empty_table()


def errors_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `errors`."""
    known, empty = list(trials), schema.arrow_schema(schema.ERRORS).empty_table()
    return to_pandas(pa.concat_tables([empty, *error_tables(prediction_pairs(known, ParityJudge(known)), Path())]))


def trials_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `trials`; `energy_joules`, which takes the samples, stays empty."""
    rows = TrialRows()
    for trial in trials:
        rows.add(trial, energy_joules=None)
    return to_pandas(rows.table())
