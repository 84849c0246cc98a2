"""Ways of distributed training beside one process as a Markdown table, and what is claimed of them."""

from __future__ import annotations

from collections.abc import Iterator

from zerobench.report.compared.claim import Claim
from zerobench.report.compared.claims import claims
from zerobench.report.compared.columns import HOW_TO_READ, WHERE_FROM, columns
from zerobench.report.compared.rows import Compared, is_comparison
from zerobench.report.figures.runs import RunFigures
from zerobench.report.grids import Grid
from zerobench.report.markdown.text import paragraph, table
from zerobench.report.terminal.layout import WIDE, Column

MOST_ROWS = 100
"""Rows of the table: a description on GitHub may have 65,536 characters."""


def compared_lines(frames: RunFigures) -> Iterator[str]:
    """The table; nothing without a single process, or with nothing but ZeRO's stages beside it."""
    rows = frames.comparison
    if not is_comparison(rows):
        return
    yield paragraph(f"{HOW_TO_READ} {WHERE_FROM}")
    yield ""
    named = [Column[Compared]("trial", "trial", row_name, is_text=True), *columns(rows)]
    yield from _table(Grid.of(named, rows[:MOST_ROWS], WIDE))
    if len(rows) > MOST_ROWS:
        yield ""
        yield paragraph(f"{len(rows) - MOST_ROWS} more rows are left out; compared.csv has them.")


def claim_lines(frames: RunFigures) -> Iterator[str]:
    """The claims, where there is a comparison."""
    if is_comparison(frames.comparison):
        yield from _table(Grid.of(CLAIM_COLUMNS, claims(frames.comparison), WIDE))


def row_name(row: Compared) -> str:
    """The trial; a server's row says whose it is."""
    return f"{row.label}: server" if row.figures.is_server else row.label


CLAIM_COLUMNS: list[Column[Claim]] = [
    Column("claim", "claim", lambda claim: claim.text, is_text=True),
    Column("is", "is", lambda claim: claim.verdict.value, is_text=True),
    Column("measured", "measured", lambda claim: claim.measured, is_text=True),
]


def _table(grid: Grid) -> Iterator[str]:
    yield from table(grid.headers, grid.is_text, grid.rows)
