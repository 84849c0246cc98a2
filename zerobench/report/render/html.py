"""Tables on the page."""

from typing import TypeVar

from zerobench.report.render.grid import Column, Grid, grid
from zerobench.report.tables.model import Column as Shown
from zerobench.report.tables.model import Line, Table
from zerobench.report.tables.part import Listing

T = TypeVar("T")


def table_grid(table: Table[T]) -> Grid:
    """The table with its caption, which says how all figures came to be; where rows differ in it, each row does."""
    evidence = {line.trial.evidence_text: line.trial.is_predicted for line in table.lines}
    differs = len(evidence) > 1 and any(evidence.values())
    columns: list[Column[Line[T]]] = [
        Column("trial", lambda line: line.trial.label, is_number=False),
        Column("figures are", lambda line: line.trial.evidence_text if differs else "", is_number=False),
        *(_shown(column) for column in table.for_files),
    ]
    alike = [f"All figures are {text}." for text, is_predicted in evidence.items() if is_predicted and not differs]
    return grid(" ".join([table.caption_for_files, *alike]), columns, table.lines, lambda line: line.trial.kind)


def listing_grid(caption: str, listing: Listing[T]) -> Grid:
    """The listing with its caption."""
    columns = [Column[T](column.header, column.cell, is_number=not column.is_text) for column in listing.columns]
    return grid(caption, columns, listing.rows, listing.kind)


def _shown(column: Shown[T]) -> Column[Line[T]]:
    return Column(column.header, lambda line: column.cell(line.figures), is_number=not column.is_text)
