"""Rows of CSV files that are dataclasses of text and whole numbers: what predictions are committed as."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TypeVar

from zerobench.errors import UserError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")


def as_csv(kind: type[Row], rows: Iterable[Row]) -> str:
    """The rows as CSV, a header first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(kind), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def from_csv(kind: type[Row], text: str) -> list[Row]:
    """The rows that `as_csv` wrote. Raises UserError for any other columns."""
    reader = csv.DictReader(io.StringIO(text))
    if reader.fieldnames != _columns(kind):
        raise UserError(f"figures: columns {reader.fieldnames}; expected: {', '.join(_columns(kind))}")
    return [_row(kind, row) for row in reader]


def _columns(kind: type[Row]) -> list[str]:
    return [field.name for field in fields(kind)]


def _row(kind: type[Row], read: Mapping[str, Any]) -> Row:
    """A row with whole numbers as such, and the rest as text."""
    types = {field.name: int if field.type in {"int", int} else str for field in fields(kind)}
    return kind(**{name: type_(read[name]) for name, type_ in types.items()})
