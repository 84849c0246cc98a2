"""Tables as frames of texts, which a figure of the page has beside its drawing."""

from __future__ import annotations

from typing import TypeVar

import pandas as pd

from zerobench.report.tables.model import Table

T = TypeVar("T")


def table_frame(table: Table[T]) -> pd.DataFrame:
    """The cells of the table, the trial's label first."""
    columns = {"trial": [line.trial.label for line in table.lines]}
    columns |= {column.header: [column.cell(line.figures) for line in table.lines] for column in table.for_files}
    return pd.DataFrame(columns)
