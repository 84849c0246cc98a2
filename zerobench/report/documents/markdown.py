"""Tables and parts as GitHub's Markdown."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from zerobench.common.units import counted
from zerobench.report.documents.text import bullets, paragraph, prose
from zerobench.report.documents.text import table as table_lines
from zerobench.report.tables.model import Table
from zerobench.report.tables.part import Listing, Part
from zerobench.report.words.column_units import MISSING, plain

T = TypeVar("T")

MOST_ROWS = 100
"""Rows of one table: a description on GitHub may have 65,536 characters."""


def lines(table: Table[T]) -> Iterator[str]:
    """The table's caption, then its rows; nothing where it has none. Empty columns are left out."""
    if not table.lines:
        return
    yield paragraph(table.caption_for_files)
    yield ""
    shown = table.lines[:MOST_ROWS]
    columns = [(column, [column.cell(line.figures) for line in shown]) for column in table.for_files]
    filled = [(column, cells) for column, cells in columns if not {"", MISSING}.issuperset(cells)]
    headers = ["trial", "evidence", *(column.header for column, _ in filled)]
    is_text = [True, True, *(column.is_text for column, _ in filled)]
    names = ([line.trial.label, line.trial.evidence_text] for line in shown)
    rows = zip(*(cells for _, cells in filled), strict=True) if filled else [()] * len(shown)
    yield from table_lines(headers, is_text, ([*name, *row] for name, row in zip(names, rows, strict=True)))
    if len(table.lines) > MOST_ROWS:
        yield ""
        yield paragraph(f"{counted(len(table.lines) - MOST_ROWS, 'more row')} on the page.")


def listing_lines(listing: Listing[T]) -> Iterator[str]:
    """The rows of a listing; nothing where it has none."""
    if listing.rows:
        headers = [column.header for column in listing.columns]
        cells = ([plain(column.cell(row)) for column in listing.columns] for row in listing.rows)
        yield from table_lines(headers, [column.is_text for column in listing.columns], cells)


def document(heading: str, parts: Sequence[Part], level: int) -> str:
    """Parts under a heading of `level` number signs, each under one of the next."""
    text_lines = [f"{'#' * level} {prose(heading)}", ""]
    for part in parts:
        for block in (
            [f"{'#' * (level + 1)} {prose(part.title)}"],
            [paragraph(part.caption)] if part.caption else [],
            list(listing_lines(part.table)) if part.table else [],
            bullets(part.points),
            [f"- **!** {prose(line)}" for line in part.warnings],
        ):
            text_lines += [*block, ""] if block else []
    return "\n".join(text_lines)
