"""How every terminal table is laid out: a title, one line that says how to read it, numbers, then what to know.

Text comes from sweep files and records, so all of it is put into rich as Text: nothing in it is markup.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.parity import Parity
from zerobench.report.tables.model import WIDE
from zerobench.report.trials import Trial

T = TypeVar("T")


class LabelledTrial(Protocol):
    """A trial, as the first cell of a row names it."""

    @property
    def label(self) -> str:
        """Its name in this run's tables."""

    @property
    def is_believed(self) -> bool:
        """Whether its losses and gradients do not speak against it."""


@dataclass(frozen=True)
class TableTrial:
    """A trial with the name it has in this run's tables and what is known of its losses."""

    trial: Trial
    label: str
    parity: Parity | None

    @property
    def is_believed(self) -> bool:
        """Whether its losses and gradients do not speak against it."""
        return self.parity is None or self.parity.agrees


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column over rows made of a `T`; where a header is None, tables of that width lack the column."""

    wide: str | None
    narrow: str | None
    cell: Callable[[T], str]
    is_text: bool = False

    def header(self, *, wide: bool) -> str | None:
        """The header in a table of this width."""
        return self.wide if wide else self.narrow


@dataclass
class Section:
    """One table of the report, or a few lines."""

    title: str
    caption: str
    table: Table | None = None
    lines: list[Text] = field(default_factory=list)
    """Below the table: what marks in it mean."""

    def print(self, console: Console) -> None:
        """Print it, an empty line after it."""
        console.print(Text(self.title, style="bold"))
        if self.caption:
            console.print(Text(self.caption, style="dim"))
        if self.table is not None:
            console.print(self.table)
        for line in self.lines:
            console.print(line)
        console.print()


def table(columns: Sequence[Column[T]], rows: Sequence[tuple[LabelledTrial, T]], width: int) -> Table:
    """A table for `width` columns of terminal, labels first; rows that are not believed are struck through."""
    kept = [column for column in columns if column.header(wide=width >= WIDE) is not None]
    headers = [column.header(wide=width >= WIDE) or "" for column in kept]
    cells = [[column.cell(row) for column in kept] for _, row in rows]
    labels = [label_text(shown) for shown, _ in rows]
    gap = 2 if _needed([headers, *cells], [column.is_text for column in kept], labels) <= width else 1
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    grid.add_column(Text("trial"), overflow="fold", min_width=5)
    for column, header in zip(kept, headers, strict=True):
        if column.is_text:
            grid.add_column(Text(header), overflow="fold")
        else:  # a number that does not fit is cut with a mark, never silently
            grid.add_column(Text(header), justify="right", no_wrap=True, overflow="ellipsis")
    for (shown, _), label, line in zip(rows, labels, cells, strict=True):
        grid.add_row(label, *(Text(cell, style="" if shown.is_believed else "red strike") for cell in line))
    return grid


def _needed(lines: Sequence[Sequence[str]], is_text: Sequence[bool], labels: Sequence[Text]) -> int:
    """Columns of terminal that a table takes with two spaces between its columns and no number broken."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths = [min(size, 24) if text else size for size, text in zip(widths, is_text, strict=True)]
    label = min(24, max(text.cell_len for text in labels))
    return label + sum(size + 2 for size in widths)


def label_text(shown: LabelledTrial) -> Text:
    """The label of a row, with a mark where the trial is not believed."""
    return Text(shown.label) if shown.is_believed else Text(f"! {shown.label}", style="red")


def mark(text: str) -> Text:
    """A line that explains a mark."""
    return Text(f"! {plain(text)}", style="yellow")


def bullets(sentences: Sequence[str]) -> Table:
    """Sentences under each other, the lines of each under its first."""
    grid = Table.grid(padding=(0, 1))
    for sentence in sentences:
        grid.add_row(Text("-"), Text(plain(sentence), overflow="fold"))
    return grid
