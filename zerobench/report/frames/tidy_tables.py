"""The four tidy tables of a run, as files in its folder and as pandas frames.

    write_tables(load_run(path))     # {memory,errors,trials}.{parquet,csv}, nvml.parquet
    read_frame(path / "trials.parquet")

One row is one observation, values are raw, and the columns (schema.py) are a public interface. Trials pass through
one at a time, so a run may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from zerobench import __version__, store
from zerobench.report.figures.runs import prediction_pairs
from zerobench.report.frames import schema
from zerobench.report.frames.rows import Columns, error_columns, key_values, memory_columns, trial_values
from zerobench.report.frames.sinks import WRITER, table_files
from zerobench.report.nvml_samples import write_samples
from zerobench.report.parity import ParityJudge
from zerobench.report.predictions.predicted import Pair
from zerobench.report.trials import LossesOnly, Trial, can_be_compared, ended_trials, refusing_impossible_values

_MEMORY, _TRIALS, _ERRORS = map(schema.arrow_schema, (schema.MEMORY, schema.TRIALS, schema.ERRORS))
_TYPES = {"memory": _MEMORY, "trials": _TRIALS, "errors": _ERRORS}
_ROWS_AT_ONCE = 5_000
"""Rows of `trials` that wait as Python objects before they become Arrow columns, at a tenth of the memory."""
_PANDAS = {
    pa.string(): pd.StringDtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


def write_tables(run: store.Run) -> list[Path]:
    """Write the tidy tables into the run's folder, over older ones, and return their paths.

    Raises:
        UserError: a record or a file of samples is torn, corrupt or newer than this version.

    """
    folder = run.folder.path
    memory = [folder / "memory.parquet", folder / "memory.csv"]
    nvml = [folder / "nvml.parquet"]
    trials = [folder / "trials.parquet", folder / "trials.csv"]
    errors = [folder / "errors.parquet", folder / "errors.csv"]
    rows = _TrialRows()
    with table_files(schema.MEMORY, *memory) as memory_sink, table_files(schema.NVML, *nvml) as nvml_sink:
        for trial in run.trials():
            with refusing_impossible_values(trial.folder.path):
                memory_sink.add(memory_table(trial))
            rows.add(trial, energy_joules=write_samples(trial, nvml_sink))
    with table_files(schema.TRIALS, *trials) as trials_sink, refusing_impossible_values(folder):
        trials_sink.add(rows.table())
    with table_files(schema.ERRORS, *errors) as errors_sink, refusing_impossible_values(folder):
        for pair in prediction_pairs(ended_trials(run), rows.judge) if rows.can_be_compared else ():
            errors_sink.add(errors_table(pair))
    return memory + nvml + trials + errors


def tables_stand(run: store.Run) -> bool:
    """Whether the run's folder holds the tables that `write_tables` would write now.

    They are of this version, younger than the record of every trial that has ended, and of as many trials: a trial
    that was set aside since would be missing.
    """
    tables = [run.folder.path / f"{name}.{kind}" for name in _TYPES for kind in ("parquet", "csv")]
    tables.append(run.folder.path / "nvml.parquet")
    records = [run.folder.trial(entry.trial_id).record for entry in run.plan.trials]
    written_ns = [_written_ns(path) for path in tables]
    ended_ns = [at_ns for path in records if (at_ns := _written_ns(path)) is not None]
    if None in written_ns or min(filter(None, written_ns)) <= max(ended_ns, default=0):
        return False
    files = {name: pa_parquet.ParquetFile(run.folder.path / f"{name}.parquet") for name in _TYPES}
    is_ours = all(
        file.schema_arrow.names == _TYPES[name].names and _writer_of(file) == __version__
        for name, file in files.items()
    )
    return is_ours and files["trials"].metadata.num_rows == len(ended_ns)


def _written_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _writer_of(file: Any) -> str:
    told: bytes = (file.schema_arrow.metadata or {}).get(WRITER, b"")
    return told.decode(errors="replace")


def memory_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `memory` of trials that are at hand."""
    tables = [memory_table(trial) for trial in trials]
    return to_pandas(pa.concat_tables([_MEMORY.empty_table(), *tables]))


def errors_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `errors` of trials that are at hand."""
    known = list(trials)
    tables = [errors_table(pair) for pair in prediction_pairs(known, ParityJudge(known))]
    return to_pandas(pa.concat_tables([_ERRORS.empty_table(), *tables]))


def trials_frame(trials: Iterable[Trial]) -> pd.DataFrame:
    """The table `trials` of trials that are at hand; `energy_joules`, which takes the samples, stays empty."""
    rows = _TrialRows()
    for trial in trials:
        rows.add(trial, energy_joules=None)
    return to_pandas(rows.table())


def read_frame(path: Path) -> pd.DataFrame:
    """A table that `write_tables` wrote as Parquet, with the dtypes that schema.py states."""
    return to_pandas(pa_parquet.read_table(path))


def to_pandas(table: Any) -> pd.DataFrame:
    """A pyarrow table as a frame of nullable dtypes: integers stay integers where some are missing."""
    frame: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS.get)
    return frame


def memory_table(trial: Trial) -> Any:
    """The rows of one trial in the table `memory`, as a pyarrow table."""
    return with_keys(key_values(trial), memory_columns(trial), _MEMORY)


def errors_table(pair: Pair) -> Any:
    """The rows of one prediction in the table `errors`, as a pyarrow table."""
    return with_keys(key_values(pair.predicted), error_columns(pair.cells, pair.against), _ERRORS)


def with_keys(values: Mapping[str, Any], columns: Columns, types: Any) -> Any:
    """A pyarrow table of `columns`, all of equal length and a `rank` among them, after keys of these `values`."""
    num_rows = len(columns["rank"])
    keys = {name: pa.scalar(value, types.field(name).type) for name, value in values.items()}
    arrays = {name: pa.repeat(value, num_rows) for name, value in keys.items()}
    arrays |= {name: pa.array(values, types.field(name).type) for name, values in columns.items()}
    return pa.table([arrays[name] for name in types.names], schema=types)


class _TrialRows:
    """Rows of the table `trials`, kept small until the last trial is there to be compared with."""

    def __init__(self) -> None:
        self._trials: list[LossesOnly] = []
        self._waiting: list[dict[str, Any]] = []
        self._tables: list[Any] = []

    def add(self, trial: Trial, energy_joules: float | None) -> None:
        self._trials.append(LossesOnly.of(trial))
        self._waiting.append(trial_values(trial, energy_joules))
        if len(self._waiting) >= _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        """Turn what waits into a table; the first one may be empty, and the others are not (sinks.py says why)."""
        if self._tables and not self._waiting:
            return
        self._tables.append(pa.Table.from_pylist(self._waiting, schema=_TRIALS))
        self._waiting = []

    @property
    def can_be_compared(self) -> bool:
        """Whether there are measured trials among them and predicted ones."""
        return can_be_compared(self._trials)

    @property
    def judge(self) -> ParityJudge:
        """Whether the losses of the trials so far agree."""
        return ParityJudge(self._trials)

    def table(self) -> Any:
        self._flush()
        judge = self.judge
        parities = [judge.judge(trial) for trial in self._trials]
        table = pa.concat_tables(self._tables)
        for name, values in (
            ("loss_parity", [parity and parity.difference for parity in parities]),
            ("norm_parity", [parity and parity.norm_difference for parity in parities]),
        ):
            index = _TRIALS.get_field_index(name)
            table = table.set_column(index, _TRIALS.field(index), pa.array(values, pa.float64()))
        return table
