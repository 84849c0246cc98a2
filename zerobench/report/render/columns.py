"""Tables as columns of texts, which a figure of the page has beside its drawing."""

from typing import TypeVar

from zerobench.report.figure import Columns
from zerobench.report.tables.model import Table

T = TypeVar("T")


def table_columns(table: Table[T]) -> Columns:
    """The cells of the table, the trial's label first."""
    columns = {"trial": [line.trial.label for line in table.lines]}
    return columns | {column.header: [column.cell(line.figures) for line in table.lines] for column in table.for_files}
