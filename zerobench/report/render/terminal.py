"""Tables and parts in a terminal, with as many columns as it has room for."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table as Grid
from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.figures.name import TrialName
from zerobench.report.render.layout import Section, bullets, mark
from zerobench.report.tables.model import WIDE, Column, Mark, Table, figures_of
from zerobench.report.tables.part import Listing, Part, VerdictSentence

__all__ = ["Console", "lines_section", "part_section", "print_parts", "print_sections", "sections"]

T = TypeVar("T")

_WIDEST_TEXT = 24
"""Columns of terminal that a text is given where they are short, before it wraps."""


def sections(table: Table[T], width: int) -> Iterator[Section]:
    """The table for `width` columns of terminal; nothing where it has no lines."""
    if table.lines:
        more = [table.more] if table.more and width >= WIDE else []
        below = [_below(line) for line in (*table.below, *more)]
        caption = table.caption if width >= WIDE or table.narrow_caption is None else table.narrow_caption
        yield Section(table.heading or table.title, caption, _table(table, width), below)


def lines_section(title: str, caption: str, lines: Sequence[str | Mark] = ()) -> Section:
    """Lines under a title: each as it stands, or as a mark."""
    return Section(title, caption, lines=[mark(line.text) if isinstance(line, Mark) else Text(line) for line in lines])


def print_sections(sections: Sequence[Section], console: Console) -> None:
    """Print the sections; where the terminal lacks a character, with a question mark in its place."""
    encoding = console.encoding
    with nullcontext() if encoding.startswith("utf") else console.capture() as capture:
        for section in sections:
            section.print(console)
    if capture is not None:
        console.file.write(capture.get().encode(encoding, "replace").decode(encoding))


def _below(line: str | Mark) -> Text:
    """A line below a table."""
    return mark(line.text) if isinstance(line, Mark) else Text(plain(line), style="dim")


def part_section(part: Part, width: int) -> Section:
    """The part for `width` columns of terminal; points without a table before them are a list."""
    grid = None if part.table is None else _table(part.table, width)
    lines = [*map(_line, part.text), *(Text(plain(line), style="dim") for line in part.quiet)]
    if grid is None and part.points:
        grid = bullets(part.points)
    else:
        lines += [Text(f"- {plain(line)}") for line in part.points]
    return Section(part.title, part.caption, grid, [*lines, *map(mark, part.warnings)])


def print_parts(parts: Iterable[Part | Table[Any] | Section], console: Console | None = None) -> None:
    """Print the parts for as many columns as `console`, or else standard output, has."""
    console = console or Console(highlight=False)
    print_sections([section for part in parts for section in _sections(part, console.width)], console)


def screen_width() -> int:
    """Columns of standard output."""
    return Console().width


def in_width(lines: Iterable[str]) -> str:
    """The lines, wrapped at words where the terminal is narrower; what goes on stands two columns in."""
    width = screen_width()
    return "".join(
        textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"
        for line in lines
    )


def _sections(part: Part | Table[Any] | Section, width: int) -> Iterable[Section]:
    if isinstance(part, Table):
        return sections(part, width)
    return [part_section(part, width) if isinstance(part, Part) else part]


def _table(table: Table[Any] | Listing[Any], width: int) -> Grid:
    if isinstance(table, Listing):
        return _grid(table.columns, table.rows, [], width)
    return _grid(table.columns, figures_of(table.lines), [line.trial for line in table.lines], width)


def _grid(columns: Sequence[Column[T]], rows: Sequence[T], trials: Sequence[TrialName], width: int) -> Grid:
    """Texts wrap, numbers never do. `trials` are those that rows are of, whose labels come first; the rows of one that
    is not believed are struck through.
    """
    headers = [(column, _wide(column) if width >= WIDE else column.narrow) for column in columns]
    kept = [(column, header) for column, header in headers if header is not None]
    cells = [[plain(column.cell(row)) for column, _ in kept] for row in rows]
    labels = [Text(trial.label) if trial.is_believed else Text(f"! {trial.label}", style="red") for trial in trials]
    wraps = [column.is_text and not column.is_whole for column, _ in kept]
    needed = _needed([[header for _, header in kept], *cells], wraps)
    if labels:
        needed += min(_WIDEST_TEXT, max(label.cell_len for label in labels))
    gap = 2 if needed <= width else 1
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    if labels:
        grid.add_column(Text("trial"), overflow="fold", min_width=5)
    for (column, header), can_wrap in zip(kept, wraps, strict=True):
        if can_wrap:
            grid.add_column(Text(header), overflow="fold", min_width=None if labels else 5)
        else:  # a number that does not fit is cut with a mark, never silently
            justify: JustifyMethod = "left" if column.is_text else "right"
            grid.add_column(Text(header), justify=justify, no_wrap=True, overflow="ellipsis")
    for index, line in enumerate(cells):
        style = "" if not trials or trials[index].is_believed else "red strike"
        grid.add_row(*labels[index : index + 1], *(Text(cell, style=style) for cell in line))
    return grid


def _wide(column: Column[T]) -> str | None:
    return column.header if column.wide == "" else column.wide


def _needed(lines: Sequence[Sequence[str]], wraps: Sequence[bool]) -> int:
    """Columns of terminal that cells take with two spaces between their columns and no number broken."""
    widths = [max(Text(cell).cell_len for cell in column) for column in zip(*lines, strict=True)]
    return sum(2 + (min(size, _WIDEST_TEXT) if text else size) for size, text in zip(widths, wraps, strict=True))


def _line(line: str | VerdictSentence) -> Text:
    if isinstance(line, str):
        return Text(plain(line))
    verdict = Text(line.verdict, style="green" if line.is_good else "yellow")
    return Text.assemble(Text(plain(line.before)), verdict, Text(plain(line.after)))
