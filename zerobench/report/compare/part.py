"""A part of a comparison: the same cells and sentences for the terminal and for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.grids import Grid
from zerobench.report.markdown import text as markdown_text
from zerobench.report.terminal.layout import Section, bullets, mark

T = TypeVar("T")

MOST_NAMED = 20
"""Rows and sentences of one kind that are shown; the rest are counted."""


@dataclass(frozen=True)
class Part:
    """A title, a line that says how to read what follows, a table, sentences, warnings."""

    title: str
    caption: str = ""
    grid: Grid | None = None
    lines: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def section(self, width: int) -> Section:
        """It for a terminal of `width` columns; without a table, its sentences as a list."""
        warnings = [mark(line) for line in self.warnings]
        if self.grid is None:
            return Section(self.title, self.caption, bullets(self.lines) if self.lines else None, warnings)
        below = [Text(f"- {plain(line)}") for line in self.lines]
        return Section(self.title, self.caption, self.grid.rich(width), [*below, *warnings])

    def markdown(self) -> Iterator[str]:
        """Its lines in GitHub's Markdown, an empty one after each block."""
        yield from (f"### {markdown_text.prose(self.title)}", "")
        for block in self._blocks():
            if block:
                yield from (*block, "")

    def _blocks(self) -> Iterator[list[str]]:
        yield [markdown_text.paragraph(self.caption)] if self.caption else []
        if self.grid is not None:
            yield self.grid.markdown()
        yield markdown_text.bullets(self.lines)
        yield [f"- **!** {markdown_text.prose(line)}" for line in self.warnings]


def few(sentences: Sequence[str]) -> list[str]:
    """The first of many sentences, the rest counted."""
    rest = len(sentences) - MOST_NAMED
    return [*sentences[:MOST_NAMED], *([f"and {rest} more"] if rest > 0 else [])]


def first(rows: Sequence[T], most: int = MOST_NAMED) -> tuple[Sequence[T], list[str]]:
    """The first rows of a long table, and a line that counts the rest."""
    rest = len(rows) - most
    return rows[:most], [f"{rest} more rows are left out"] if rest > 0 else []
