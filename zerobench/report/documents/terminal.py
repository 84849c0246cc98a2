"""Tables and parts in a terminal: a title, one line that says how to read it, numbers, then what to know.

They have as many columns as the terminal has room for. Text comes from sweep files and records, so all of it is put
into rich as Text: nothing in it is markup.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table as Grid
from rich.text import Text

from zerobench.report.figures.name import TrialName
from zerobench.report.tables.model import WIDE, Column, Mark, Table, figures_of
from zerobench.report.tables.part import Part, VerdictSentence
from zerobench.report.words.column_units import plain

__all__ = ["Console", "print_lines", "print_parts", "rendered"]

T = TypeVar("T")

_WIDEST_TEXT = 24
"""Columns of terminal that a text is given where they are short, before it wraps."""


def print_parts(parts: Iterable[Part | Table[Any]], console: Console | None = None) -> None:
    """Print the parts for as many columns as `console`, or else standard output, has."""
    console = console or Console(highlight=False)
    print_lines(rendered(parts, console.width), console)


def print_lines(lines: Sequence[Text | Grid], console: Console) -> None:
    """Print what was rendered; where the terminal lacks a character, with a question mark in its place."""
    encoding = console.encoding
    with nullcontext() if encoding.startswith("utf") else console.capture() as capture:
        for line in lines:
            console.print(line)
    if capture is not None:
        console.file.write(capture.get().encode(encoding, "replace").decode(encoding))


def rendered(parts: Iterable[Part | Table[Any]], width: int) -> list[Text | Grid]:
    """The parts for `width` columns of terminal, an empty line after each; nothing of a table without lines."""
    shown = (_table(part, width) if isinstance(part, Table) else _part(part, width) for part in parts)
    return [line for lines in shown for line in lines]


def _titled(title: str, caption: str, lines: Iterable[Text | Grid]) -> Iterator[Text | Grid]:
    yield Text(title, style="bold")
    if caption:
        yield Text(caption, style="dim")
    yield from lines
    yield Text()


def _table(table: Table[T], width: int) -> Iterator[Text | Grid]:
    if table.lines:
        is_wide = width >= WIDE
        more = [table.more] if table.more and is_wide else []
        caption = table.caption if is_wide or table.narrow_caption is None else table.narrow_caption
        grid = _grid(table.columns, figures_of(table.lines), [line.trial for line in table.lines], width)
        below = (_mark(each.text) if isinstance(each, Mark) else _quiet(each) for each in (*table.below, *more))
        yield from _titled(table.heading or table.title, caption, [grid, *below])


def _part(part: Part, width: int) -> Iterator[Text | Grid]:
    """Points without a table before them are a list, the lines of each under its first."""
    grids = [_grid(part.table.columns, part.table.rows, [], width)] if part.table else []
    points = [Text(f"- {plain(line)}") for line in part.points]
    if points and not grids:
        grids, points = [Grid.grid(padding=(0, 1))], []
        for sentence in part.points:
            grids[0].add_row(Text("-"), Text(plain(sentence), overflow="fold"))
    text = [*map(_line, part.text), *map(_quiet, part.quiet)]
    yield from _titled(part.title, part.caption, [*grids, *text, *points, *map(_mark, part.warnings)])


def _quiet(text: str) -> Text:
    return Text(plain(text), style="dim")


def _mark(text: str) -> Text:
    """A line that explains a mark."""
    return Text(f"! {plain(text)}", style="yellow")


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


def _grid(columns: Sequence[Column[T]], rows: Sequence[T], trials: Sequence[TrialName], width: int) -> Grid:
    """Texts wrap, numbers never do. `trials` are those that rows are of, whose labels come first; the rows of one that
    is not believed are struck through.
    """
    headers = [
        (column, (column.wide if column.wide != "" else column.header) if width >= WIDE else column.narrow)
        for column in columns
    ]
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


def _needed(lines: Sequence[Sequence[str]], wraps: Sequence[bool]) -> int:
    """Columns of terminal that cells take with two spaces between their columns and no number broken."""
    widths = [max(Text(cell).cell_len for cell in column) for column in zip(*lines, strict=True)]
    return sum(2 + (min(size, _WIDEST_TEXT) if text else size) for size, text in zip(widths, wraps, strict=True))


def _line(line: str | VerdictSentence) -> Text:
    if isinstance(line, str):
        return Text(plain(line))
    verdict = Text(line.verdict, style="green" if line.is_good else "yellow")
    return Text.assemble(Text(plain(line.before)), verdict, Text(plain(line.after)))
