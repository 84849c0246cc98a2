"""Rows of CSV files that are dataclasses of text and whole numbers: what predictions are committed as."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

from zerobench.common.errors import UserError
from zerobench.report.words.cells import as_cell, as_text, quoting_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_FIGURE = re.compile(r"-?\d+(\.\d+)?")
Row = TypeVar("Row", bound="DataclassInstance")


def as_csv(kind: type[Row], rows: Iterable[Row]) -> str:
    """The rows as CSV, a header first."""
    text = io.StringIO()
    written = [_cells(asdict(row)) for row in rows]
    quoting = quoting_of(value for row in written for value in row.values())
    csv.writer(text, lineterminator="\n").writerow(_columns(kind))
    csv.DictWriter(text, _columns(kind), lineterminator="\n", quoting=quoting).writerows(written)
    return text.getvalue()


def from_csv(kind: type[Row], text: str) -> list[Row]:
    """The rows that `as_csv` wrote. Raises UserError for any other columns."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if reader.fieldnames != _columns(kind):
        raise UserError(f"figures: columns {reader.fieldnames}; expected: {', '.join(_columns(kind))}")
    return [_row(kind, row) for row in reader]


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with its texts escaped, but for figures with a fixed number of decimals, which are kept as texts."""
    return {
        name: value if isinstance(value, str) and _FIGURE.fullmatch(value) else as_cell(value)
        for name, value in row.items()
    }


def _columns(kind: type[Row]) -> list[str]:
    return [field.name for field in fields(kind)]


def _row(kind: type[Row], read: Mapping[str, Any]) -> Row:
    """A row with whole numbers as such, and the rest as text."""
    types: dict[str, Callable[[str], Any]] = {
        field.name: int if field.type in {"int", int} else as_text for field in fields(kind)
    }
    return kind(**{name: type_(read[name]) for name, type_ in types.items()})
