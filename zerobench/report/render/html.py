"""Tables on the page, and as the columns of texts that a figure has beside its drawing."""

from typing import TypeVar

from zerobench.report.figure import Columns
from zerobench.report.render.grid import Grid, grid
from zerobench.report.tables.model import Column, Line, Table
from zerobench.report.tables.part import Listing

T = TypeVar("T")


def table_grid(table: Table[T]) -> Grid:
    """The table with its caption, which says how all figures came to be; where rows differ in it, each row does."""
    evidence = {line.trial.evidence_text: line.trial.is_predicted for line in table.lines}
    differs = len(evidence) > 1 and any(evidence.values())
    columns: list[Column[Line[T]]] = [
        Column("trial", lambda line: line.trial.label, is_text=True),
        Column("figures are", lambda line: line.trial.evidence_text if differs else "", is_text=True),
        *(column.over(lambda line: line.figures) for column in table.for_files),
    ]
    alike = [f"All figures are {text}." for text, is_predicted in evidence.items() if is_predicted and not differs]
    return grid(" ".join([table.caption_for_files, *alike]), columns, table.lines, lambda line: line.trial.kind)


def listing_grid(caption: str, listing: Listing[T]) -> Grid:
    """The listing with its caption."""
    return grid(caption, listing.columns, listing.rows, listing.kind)


def table_columns(table: Table[T]) -> Columns:
    """The cells of the table, the trial's label first."""
    columns = {"trial": [line.trial.label for line in table.lines]}
    return columns | {column.header: [column.cell(line.figures) for line in table.lines] for column in table.for_files}
