"""Tables on the page."""

from __future__ import annotations

from typing import TypeVar

from zerobench.report.render.grid import Column, Grid, grid
from zerobench.report.tables.model import Column as Shown
from zerobench.report.tables.model import Line, Table
from zerobench.report.tables.part import Listing

T = TypeVar("T")


def table_grid(table: Table[T]) -> Grid:
    """The table with its caption; whether its figures are predicted is said where some are."""
    some_predicted = any(line.trial.is_predicted for line in table.lines)
    columns: list[Column[Line[T]]] = [
        Column("trial", lambda line: line.trial.label, is_number=False),
        Column(
            "figures are",
            lambda line: line.trial.evidence_text if some_predicted else "",
            is_number=False,
        ),
        *(_shown(column) for column in table.for_files),
    ]
    return grid(table.caption_for_files, columns, table.lines, lambda line: line.trial.kind)


def listing_grid(caption: str, listing: Listing[T]) -> Grid:
    """The listing with its caption."""
    columns = [Column[T](column.header, column.cell, is_number=not column.is_text) for column in listing.columns]
    return grid(caption, columns, listing.rows, listing.kind)


def _shown(column: Shown[T]) -> Column[Line[T]]:
    return Column(column.header, lambda line: column.cell(line.figures), is_number=not column.is_text)
