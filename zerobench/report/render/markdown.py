"""Tables as GitHub's Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from zerobench.report.markdown.text import paragraph
from zerobench.report.markdown.text import table as table_lines
from zerobench.report.tables.model import Table

T = TypeVar("T")

MOST_ROWS = 100
"""Rows of one table: a description on GitHub may have 65,536 characters."""


def lines(table: Table[T]) -> Iterator[str]:
    """How to read the table, then its rows; nothing where it has none."""
    if not table.lines:
        return
    yield paragraph(table.caption)
    yield ""
    headers = ["trial", "evidence", *(column.header for column in table.columns)]
    is_text = [True, True, *(column.is_text for column in table.columns)]
    shown = (
        [
            line.trial.label,
            line.trial.evidence_text,
            *(column.cell(line.figures) for column in table.columns),
        ]
        for line in table.lines[:MOST_ROWS]
    )
    yield from table_lines(headers, is_text, shown)
    if len(table.lines) > MOST_ROWS:
        yield ""
        yield paragraph(f"{len(table.lines) - MOST_ROWS} more rows are left out; the page has them.")
