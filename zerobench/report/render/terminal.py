"""Tables in a terminal, with as many columns as it has room for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.tables.model import Column, Table
from zerobench.report.terminal.layout import Column as Shown
from zerobench.report.terminal.layout import Section
from zerobench.report.terminal.layout import table as trial_table

T = TypeVar("T")


def sections(table: Table[T], width: int) -> Iterator[Section]:
    """The table for `width` columns of terminal; nothing where it has no lines."""
    if table.lines:
        columns = [_shown(column) for column in table.columns]
        rows = [(line.trial, line.figures) for line in table.lines]
        below = [Text(plain(line), style="dim") for line in table.below]
        yield Section(table.title, table.caption, trial_table(columns, rows, width), below)


def _shown(column: Column[T]) -> Shown[T]:
    wide = column.header if column.wide == "" else column.wide
    return Shown(wide, column.narrow, column.cell, is_text=column.is_text)
