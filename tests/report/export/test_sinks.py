"""Rows wait until there are enough of them, and are written once and in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from zerobench.report.export import sinks
from zerobench.report.export.schema import INTEGER, STRING, arrow_schema
from zerobench.report.export.sinks import TableSink, table_files

COLUMNS = {"name": STRING, "bytes": INTEGER}


class Pieces:
    """Takes what a sink writes."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def write_table(self, table: Any, rows_per_group: int) -> None:
        assert rows_per_group == 4
        self.sizes.append(table.num_rows)


def rows(number: int) -> Any:
    values = [{"name": f"row {index}", "bytes": index} for index in range(number)]
    return pa.Table.from_pylist(values, schema=arrow_schema(COLUMNS))


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    """Of four rows or more."""
    monkeypatch.setattr(sinks, "ROWS_PER_GROUP", 4)
    return Pieces()


@pytest.mark.parametrize(
    ("batches", "written"),
    [([4, 4, 1], [4, 4, 1]), ([3, 1, 3, 1], [4, 4, 0]), ([3, 3, 3], [6, 3]), ([5, 3], [5, 3]), ([0, 0], [0])],
)
def test_what_waits_is_written_as_soon_as_it_is_enough(pieces: Pieces, batches: list[int], written: list[int]) -> None:
    sink = TableSink(COLUMNS, [pieces])
    for number in batches:
        sink.add(rows(number))
    sink.flush()
    assert pieces.sizes == written


def test_a_record_batch_is_as_good_as_a_table(pieces: Pieces) -> None:
    sink = TableSink(COLUMNS, [pieces])
    for batch in rows(4).to_batches():
        sink.add(batch)
    assert pieces.sizes == [4]


def test_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"

    def write(number: int, fault: Exception | None = None) -> None:
        with table_files(COLUMNS, path) as sink:
            sink.add(rows(number))
            if fault is not None:
                raise fault

    write(2)
    assert path.read_text() == 'name,bytes\n"row 0",0\n"row 1",1\n'
    with pytest.raises(ZeroDivisionError):
        write(1, ZeroDivisionError())
    assert path.read_text() == 'name,bytes\n"row 0",0\n"row 1",1\n'
    assert list(tmp_path.iterdir()) == [path]
