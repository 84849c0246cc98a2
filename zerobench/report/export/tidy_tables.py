"""The four tidy tables of a run, as files in its folder and as pandas frames.

    write_tables(load_run(path))     # {memory,errors,trials}.{parquet,csv}, nvml.parquet
    read_frame(path / "trials.parquet")

One row is one observation, values are raw, and the columns (schema.py) are a public interface. Trials pass through
one at a time, so a run may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from zerobench import __version__
from zerobench.records import store
from zerobench.records.trials import (
    PlainTrial,
    Trial,
    can_be_compared,
    ended_trials,
    losses_alone,
    refuse_impossible_values,
)
from zerobench.report.export import schema
from zerobench.report.export.nvml_samples import write_samples
from zerobench.report.export.rows import (
    Columns,
    Row,
    error_columns,
    key_values,
    memory_columns,
    parity_values,
    summary_row,
)
from zerobench.report.export.sinks import WRITER, TableSink, table_files
from zerobench.report.figures.energy import energies
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.parity import ParityJudge
from zerobench.report.figures.predictions.predicted import Pair
from zerobench.report.figures.run.runs import prediction_pairs

_MEMORY, _TRIALS, _ERRORS = map(schema.arrow_schema, (schema.MEMORY, schema.TRIALS, schema.ERRORS))
_TYPES = {"memory": _MEMORY, "trials": _TRIALS, "errors": _ERRORS}
_ROWS_AT_ONCE = 2_000
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
    memory, trials, errors = ([folder / f"{name}.{kind}" for kind in ("parquet", "csv")] for name in _TYPES)
    nvml = [folder / "nvml.parquet"]
    rows = TrialRows()
    with table_files(schema.MEMORY, *memory) as memory_sink, table_files(schema.NVML, *nvml) as nvml_sink:
        for table in memory_tables(rows.passing(run.trials(), nvml_sink)):
            memory_sink.add(table)
    with table_files(schema.TRIALS, *trials) as trials_sink, refuse_impossible_values(folder):
        trials_sink.add(rows.table())
    with table_files(schema.ERRORS, *errors) as errors_sink, refuse_impossible_values(folder):
        pairs = prediction_pairs(ended_trials(run), rows.judge) if can_be_compared(rows.trials) else ()
        for table in error_tables(pairs, folder):
            errors_sink.add(table)
    return memory + nvml + trials + errors


def memory_frame(run: store.Run) -> pd.DataFrame:
    """The memory table of `run`, made from its records. Raises UserError: a record is torn."""
    return to_pandas(pa.concat_tables([_MEMORY.empty_table(), *memory_tables(run.trials())]))


def trials_frame(run: store.Run) -> pd.DataFrame:
    """The trials table of `run`, made from its records. Raises as `memory_frame` does."""
    rows, joules = TrialRows(), energies(run)
    for trial in run.trials():
        rows.add(trial, energy_joules=joules.get(trial.spec.trial_id))
    return to_pandas(rows.table())


def tables_stand(run: store.Run) -> bool:
    """True if the run's folder holds the tables that `write_tables` would write now.

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
    return all(map(_ends_in_a_line, tables)) and _are_ours(tables, len(ended_ns))


def _are_ours(tables: Sequence[Path], num_trials: int) -> bool:
    """True if the Parquet files are whole, and tables of this version, that of trials with this many rows."""
    try:
        files = {path.stem: pa_parquet.ParquetFile(path) for path in tables if path.suffix == ".parquet"}
    except (OSError, pa.ArrowInvalid):  # cut short, by a full disk or a copy
        return False
    is_ours = all(
        files[name].schema_arrow.names == types.names
        and (files[name].schema_arrow.metadata or {}).get(WRITER) == __version__.encode()
        for name, types in _TYPES.items()
    )
    return is_ours and files["trials"].metadata.num_rows == num_trials


def _ends_in_a_line(path: Path) -> bool:
    """True if a CSV is whole to its last line's end; other files are not checked."""
    if path.suffix != ".csv":
        return True
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 1, 0))
        return file.read() == b"\n"


def _written_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def read_frame(path: Path) -> pd.DataFrame:
    """A table that `write_tables` wrote as Parquet, with the dtypes that schema.py states."""
    return to_pandas(pa_parquet.read_table(path))


def to_pandas(table: Any) -> pd.DataFrame:
    """A pyarrow table as a frame of nullable dtypes: integers stay integers where some are missing."""
    frame: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS.get)
    return frame


def memory_tables(trials: Iterable[store.Trial]) -> Iterator[Any]:
    """The rows of `trials` in the table `memory`, as pyarrow tables. Raises UserError: a value is impossible."""
    return _tables(map(_memory_rows, trials), _MEMORY)


def _memory_rows(trial: store.Trial) -> _Rows:
    with refuse_impossible_values(trial.folder.path):
        return trial.folder.path, key_values(trial), memory_columns(trial)


def error_tables(pairs: Iterable[Pair], folder: Path) -> Iterator[Any]:
    """The rows of the predictions of the run in `folder` in the table `errors`, as pyarrow tables."""
    rows = ((folder, key_values(pair.predicted), error_columns(pair.cells, pair.against)) for pair in pairs)
    return _tables(rows, _ERRORS)


_Rows = tuple[Path, Mapping[str, Any], Columns]
"""Source of the rows for errors, the keys of all of them, and the columns after the keys."""


def _tables(row_sets: Iterable[_Rows], types: Any) -> Iterator[Any]:
    """`row_sets` as tables of many rows each: one of ten rows takes pyarrow 40 kB and a millisecond."""
    waiting: list[_Rows] = []
    num_waiting = 0
    for rows in row_sets:
        waiting.append(rows)
        num_waiting += 1 + len(rows[-1]["rank"])
        if num_waiting > _ROWS_AT_ONCE:
            yield _table(waiting, types)
            waiting, num_waiting = [], 0
    if waiting:
        yield _table(waiting, types)


def _table(row_sets: Sequence[_Rows], types: Any) -> Any:
    try:
        return with_keys([rows for _, *rows in row_sets], types)
    except (OverflowError, ValueError):
        for where, *rows in row_sets:
            with refuse_impossible_values(where):
                with_keys([rows], types)
        raise


def with_keys(row_sets: Iterable[Sequence[Any]], types: Any) -> Any:
    """A pyarrow table of keys and, behind them, columns that all have these keys: equally long, a `rank` among them."""
    keys, columns = zip(*row_sets, strict=True)
    indices = pa.array([index for index, group in enumerate(columns) for _ in group["rank"]], pa.int64())
    repeated = pa.Table.from_pylist(keys, schema=pa.schema([types.field(name) for name in schema.KEYS])).take(indices)
    joined = ((name, [value for column in columns for value in column[name]]) for name in columns[0])
    arrays = {name: pa.array(values, types.field(name).type) for name, values in joined}
    return pa.table([*repeated.columns, *map(arrays.__getitem__, types.names[len(schema.KEYS) :])], schema=types)


def rows_table(columns: Mapping[str, str], rows: Iterable[Row]) -> Any:
    """A pyarrow table of rows, of which few wait as Python objects at a time: they take ten times as much."""
    types, waiting = schema.arrow_schema(columns), iter(rows)
    pieces = iter(lambda: list(islice(waiting, _ROWS_AT_ONCE)), [])
    tables = [pa.Table.from_pylist(piece, schema=types) for piece in pieces]
    return pa.concat_tables(tables) if tables else types.empty_table()


class TrialRows:
    """Rows of the table `trials`, whose losses are compared when the last trial is there."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self.trials: list[PlainTrial] = []

    def add(self, trial: Trial, energy_joules: float | None) -> None:
        """Take the next trial, and the energy of its timed steps."""
        self.trials.append(losses_alone(trial))
        row = summary_row(trial_figures(trial)) | {"energy_joules": energy_joules}
        self._rows.append(tuple(row[name] for name in schema.TRIALS))

    def passing(self, trials: Iterable[store.Trial], samples: TableSink) -> Iterator[store.Trial]:
        """Each of `trials`, taken, with its NVML samples written."""
        for trial in trials:
            self.add(trial, energy_joules=write_samples(trial, samples))
            yield trial

    @property
    def judge(self) -> ParityJudge:
        """Judge of whether the losses of the trials so far agree."""
        return ParityJudge(self.trials)

    def table(self) -> Any:
        """The rows, as a pyarrow table."""
        judge = self.judge
        rows = (
            dict(zip(schema.TRIALS, row, strict=True)) | parity_values(judge.judge(trial))
            for row, trial in zip(self._rows, self.trials, strict=True)
        )
        return rows_table(schema.TRIALS, rows)
