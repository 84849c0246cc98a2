"""Writes a table of any length in pieces: Parquet row groups and CSV from the same rows, put in place when whole.

A run of a thousand trials on eight ranks has some two million memory rows; they pass through in batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from zerobench import __version__
from zerobench.common.file_errors import naming
from zerobench.common.temporary_files import replacing
from zerobench.report.export.schema import arrow_schema
from zerobench.report.words.cells import ESCAPABLE

ROWS_PER_GROUP = 100_000
"""Rows of a Parquet row group: enough to compress well, few enough to hold in memory many times over."""

WRITER = b"zerobench"
"""In a Parquet file's metadata: the version that derived its figures."""


class TableSink:
    """Takes the rows of one table, batch by batch, and writes them to one or more files at once."""

    def __init__(self, columns: Mapping[str, str], writers: Sequence[Any]) -> None:
        self.schema = arrow_schema(columns)
        self._writers = writers
        self._waiting: list[Any] = []
        self._num_waiting = 0

    def add(self, batch: Any) -> None:
        """Take a pyarrow table or record batch that has this table's schema.

        An empty one is left out: pyarrow's CSV writer puts memory that nobody wrote before the rows behind it.
        """
        if not batch.num_rows:
            return
        self._waiting.append(pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch)
        self._num_waiting += batch.num_rows
        if self._num_waiting >= ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write what waits. An empty table has its columns all the same."""
        table = pa.concat_tables(self._waiting) if self._waiting else self.schema.empty_table()
        for writer in self._writers:
            writer.write_table(table, ROWS_PER_GROUP)
        self._waiting, self._num_waiting = [], 0


@dataclass(frozen=True)
class _NamingWriter:
    """A pyarrow writer whose errors name the file."""

    path: Path
    writer: Any

    def write_table(self, table: Any, rows_per_group: int) -> None:
        with naming(self.path):
            self.writer.write_table(table, rows_per_group)


@contextmanager
def table_files(columns: Mapping[str, str], *paths: Path) -> Iterator[TableSink]:
    """A sink for `paths` (`.parquet` or `.csv`), which appear, whole, when the block ends without an error."""
    schema = arrow_schema(columns)
    with ExitStack() as replaced:
        temporary = {path: replaced.enter_context(replacing(path)) for path in paths}
        with ExitStack() as stack:
            writers = [_NamingWriter(path, _writer(path, temporary[path], schema, stack)) for path in paths]
            sink = TableSink(columns, writers)
            yield sink
            sink.flush()


def _writer(path: Path, temporary: Path, schema: Any, stack: ExitStack) -> Any:
    """A pyarrow writer for the format that `path`'s suffix says, closed with `stack`."""
    stack.enter_context(naming(path))  # what fails as it is closed
    if path.suffix == ".parquet":
        signed = schema.with_metadata({WRITER: __version__})
        return stack.enter_context(pa_parquet.ParquetWriter(temporary, signed, compression="zstd"))
    file = stack.enter_context(temporary.open("wb"))
    file.write((",".join(schema.names) + "\n").encode())  # pyarrow would put each name in quotes
    options = pa_csv.WriteOptions(include_header=False, quoting_style="needed")
    return _CsvWriter(stack.enter_context(pa_csv.CSVWriter(file, schema, write_options=options)))


class _CsvWriter:
    """Escapes texts on their way into a CSV (cells.py); Parquet has no formulas, and keeps them as they are."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write_table(self, table: Any, rows_per_group: int) -> None:
        texts = (index for index, kind in enumerate(table.schema.types) if pa.types.is_string(kind))
        for index in texts:
            escaped = pc.replace_substring_regex(table[index], ESCAPABLE, r"'\1", max_replacements=1)
            table = table.set_column(index, table.schema.field(index), escaped)
        self._writer.write_table(table, rows_per_group)
