"""Tables of the page: captions, headers, and rows of text that the template escapes; figures have theirs as columns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from zerobench.report.tables.figure import Columns
from zerobench.report.tables.model import Column, Line, Table
from zerobench.report.tables.part import Listing
from zerobench.report.words.column_units import MISSING
from zerobench.report.words.visible import visible

T = TypeVar("T")

MANY_ROWS = 60
"""Rows from which a table scrolls in a frame of its own on the screen, and is left out on paper."""

_NUMERIC = frozenset("0123456789+-.,%eE \N{MINUS SIGN}\N{PLUS-MINUS SIGN}\N{ALMOST EQUAL TO}<>")


@dataclass(frozen=True)
class Header:
    """The head of a column."""

    text: str
    is_number: bool = False
    """True if its cells are set flush right."""

    @property
    def css(self) -> str:
        """The attribute that a cell of this column needs in HTML: unquoted, so nothing in it is ever escaped."""
        return " class=number" if self.is_number else ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; its first cell names it."""

    cells: Sequence[str]
    kind: str = ""
    """Mark of the row besides its words: `predicted`, `doubted`, `failed`, `skipped`, or nothing."""


@dataclass(frozen=True)
class Grid:
    """A table that is ready to be written."""

    caption: str
    headers: Sequence[Header]
    rows: Sequence[Row]

    @property
    def is_long(self) -> bool:
        """True if it has more rows than a reader takes in at once."""
        return len(self.rows) > MANY_ROWS


def grid(
    caption: str, columns: Sequence[Column[T]], rows: Sequence[T], kind: Callable[[T], str] = lambda _: ""
) -> Grid:
    """A table of `rows`; a column after the first that would say nothing in any of them is left out."""
    cells = [_each_once(visible(column.cell(row)) for row in rows) for column in columns]
    says_any = [index == 0 or any(text not in {"", MISSING} for text in cells[index]) for index in range(len(columns))]
    headers = [
        Header(column.header, not column.is_text) for column, keep in zip(columns, says_any, strict=True) if keep
    ]
    kept = [column for column, keep in zip(cells, says_any, strict=True) if keep]
    lines = zip(*kept, strict=True)
    return Grid(caption, headers, [Row(line, kind(row)) for line, row in zip(lines, rows, strict=True)])


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


def columns_grid(caption: str, columns: Columns) -> Grid:
    """A table whose columns and cells are written for people already."""
    shown = [_each_once(map(visible, cells)) for cells in columns.values()]
    headers = [Header(visible(name), _is_numeric(cells)) for name, cells in zip(columns, shown, strict=True)]
    return Grid(caption, headers, [Row(line) for line in zip(*shown, strict=True)])


def _each_once(texts: Iterable[str]) -> list[str]:
    """`texts` with one object for all that are alike: of ten thousand cells most are."""
    seen: dict[str, str] = {}
    return [seen.setdefault(text, text) for text in texts]


def _is_numeric(cells: Iterable[str]) -> bool:
    """True if every cell that has text is a number."""
    filled = [cell for cell in cells if cell not in {"", MISSING}]
    return bool(filled) and all(_NUMERIC.issuperset(cell) and any(map(str.isdigit, cell)) for cell in filled)
