"""Tables in a terminal, with as many columns as it has room for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.tables.model import Column, Mark, Table
from zerobench.report.terminal.layout import WIDE, Section, mark
from zerobench.report.terminal.layout import Column as Shown
from zerobench.report.terminal.layout import table as trial_table

T = TypeVar("T")


def sections(table: Table[T], width: int) -> Iterator[Section]:
    """The table for `width` columns of terminal; nothing where it has no lines."""
    if table.lines:
        columns = [shown(column) for column in table.columns]
        rows = [(line.trial, line.figures) for line in table.lines]
        more = [table.more] if table.more and width >= WIDE else []
        caption = table.caption if width >= WIDE or table.narrow_caption is None else table.narrow_caption
        below = [line_text(line) for line in (*table.below, *more)]
        yield Section(table.heading or table.title, caption, trial_table(columns, rows, width), below)


def line_text(line: str | Mark) -> Text:
    """A line below a table."""
    return mark(line.text) if isinstance(line, Mark) else Text(plain(line), style="dim")


def shown(column: Column[T]) -> Shown[T]:
    """The column with its headers in a wide terminal and in a narrow one."""
    wide = column.header if column.wide == "" else column.wide
    return Shown(wide, column.narrow, column.cell, is_text=column.is_text)
