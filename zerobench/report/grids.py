"""A table of texts, the same cells in the terminal and in a Markdown file; tables of trials: terminal/layout.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.markdown.text import table
from zerobench.report.terminal.layout import WIDE, Column, T

_WIDEST_TEXT = 24
"""Columns of terminal that a text is given where they are short, before it wraps."""


@dataclass(frozen=True)
class Grid:
    """Headers, and rows of as many cells; texts wrap, numbers never do."""

    headers: tuple[str, ...]
    is_text: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[Column[T]], rows: Sequence[T], width: int) -> Grid:
        """The cells of `rows` in the columns that a table of `width` columns of terminal has."""
        kept = [(column, header) for column in columns if (header := column.header(wide=width >= WIDE)) is not None]
        cells = tuple(tuple(plain(column.cell(row)) for column, _ in kept) for row in rows)
        return cls(tuple(header for _, header in kept), tuple(column.is_text for column, _ in kept), cells)

    def rich(self, width: int) -> Table:
        """The table for `width` columns of terminal."""
        gap = 2 if self._needed <= width else 1
        grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
        for header, is_text in zip(self.headers, self.is_text, strict=True):
            if is_text:
                grid.add_column(Text(header), overflow="fold", min_width=5)
            else:  # a number that does not fit is cut with a mark, never silently
                grid.add_column(Text(header), justify="right", no_wrap=True, overflow="ellipsis")
        for row in self.rows:
            grid.add_row(*map(Text, row))
        return grid

    @property
    def _needed(self) -> int:
        """Columns of terminal that the table takes with two spaces between its columns and no number broken."""
        widths = [max(Text(cell).cell_len for cell in column) for column in zip(self.headers, *self.rows, strict=True)]
        return sum(2 + (min(w, _WIDEST_TEXT) if text else w) for w, text in zip(widths, self.is_text, strict=True))

    def markdown(self) -> list[str]:
        """The lines of the table in GitHub's Markdown."""
        return table(self.headers, self.is_text, self.rows)
