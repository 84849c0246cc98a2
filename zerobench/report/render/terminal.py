"""Tables in a terminal, with as many columns as it has room for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TypeVar

from rich.console import Console
from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.render.layout import WIDE, Section, bullets, mark
from zerobench.report.render.layout import Column as Shown
from zerobench.report.render.layout import table as trial_table
from zerobench.report.tables.model import Column, Mark, Table

__all__ = ["Console", "lines_section", "list_section", "print_sections", "sections", "shown"]

T = TypeVar("T")


def sections(table: Table[T], width: int) -> Iterator[Section]:
    """The table for `width` columns of terminal; nothing where it has no lines."""
    if table.lines:
        columns = [shown(column) for column in table.columns]
        rows = [(line.trial, line.figures) for line in table.lines]
        more = [table.more] if table.more and width >= WIDE else []
        caption = table.caption if width >= WIDE or table.narrow_caption is None else table.narrow_caption
        below = [_line(line) for line in (*table.below, *more)]
        yield Section(table.heading or table.title, caption, trial_table(columns, rows, width), below)


def lines_section(title: str, caption: str, lines: Sequence[str | Mark] = ()) -> Section:
    """Lines under a title: each as it stands, or as a mark."""
    return Section(title, caption, lines=[mark(one.text) if isinstance(one, Mark) else Text(one) for one in lines])


def list_section(title: str, caption: str, points: Sequence[str]) -> Section:
    """Sentences under a title, as a list."""
    return Section(title, caption, bullets(points))


def print_sections(sections: Sequence[Section], console: Console) -> None:
    """Print the sections; where the terminal lacks a character, with a question mark in its place."""
    encoding = console.encoding
    with nullcontext() if encoding.startswith("utf") else console.capture() as capture:
        for section in sections:
            section.print(console)
    if capture is not None:
        console.file.write(capture.get().encode(encoding, "replace").decode(encoding))


def _line(line: str | Mark) -> Text:
    """A line below a table."""
    return mark(line.text) if isinstance(line, Mark) else Text(plain(line), style="dim")


def shown(column: Column[T]) -> Shown[T]:
    """The column with its headers in a wide terminal and in a narrow one."""
    wide = column.header if column.wide == "" else column.wide
    return Shown(wide, column.narrow, column.cell, is_text=column.is_text)
