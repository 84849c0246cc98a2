"""A table before anybody knows where it is shown: a title, how to read it, columns with cells, rows with names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from zerobench.report.figures.name import TrialName
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words.column_units import MISSING, Unit

T = TypeVar("T")
S = TypeVar("S")

WIDE = 120
"""From this many columns of terminal on, tables have all their columns and long headers."""


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column over rows made of a `T`."""

    name: str
    """Without the unit, in full."""
    cell: Callable[[T], str]
    unit: str = ""
    wide: str | None = ""
    """The header in a terminal with room for all columns; empty: as everywhere. None: not in a terminal."""
    narrow: str | None = None
    """The header in 80 columns; None: left out there."""
    is_text: bool = False
    is_whole: bool = False
    """True if a terminal never breaks its texts, as it breaks no number."""
    is_for_files: bool = True
    """True if Markdown and the page have it too."""

    @property
    def header(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def over(self, part: Callable[[S], T]) -> Column[S]:
        """It over rows that have a `part` which it is a column of."""
        untyped: Any = self
        over: Column[S] = replace(untyped, cell=lambda row: self.cell(part(row)))
        return over


@dataclass(frozen=True)
class Line(Generic[T]):
    """One row: the trial that it is of, and its figures."""

    trial: TrialName
    figures: T


@dataclass(frozen=True)
class Mark:
    """A line that explains what is not to be taken as it stands."""

    text: str


@dataclass(frozen=True)
class Table(Generic[T]):
    """Ready to be rendered. No lines: there is nothing to show."""

    title: str
    caption: str
    """Explanation of the columns."""
    columns: Sequence[Column[T]]
    """After the trial's name."""
    lines: Sequence[Line[T]]
    below: Sequence[str | Mark] = ()
    """Lines of the terminal under it."""
    more: str = ""
    """More of how to read it, which 80 columns of terminal have no room for."""
    narrow_caption: str | None = None
    """Explanation in 80 columns of terminal, where its columns are others there."""
    more_for_files: str = ""
    """Explanation of the columns that Markdown and the page have more."""
    heading: str | None = None
    """The title in a terminal that names the unit, which the columns there then do not."""

    @property
    def caption_for_files(self) -> str:
        """All of how to read it."""
        return " ".join(filter(None, (self.caption, self.more_for_files, self.more)))

    @property
    def for_files(self) -> list[Column[T]]:
        """The columns that Markdown and the page have."""
        return [column for column in self.columns if column.is_for_files]


def figures_of(lines: Iterable[Line[T]]) -> list[T]:
    """The figures alone, of which columns choose their units."""
    return [line.figures for line in lines]


def lines_of(trials: Iterable[TrialFigures], figures: Callable[[TrialFigures], Iterable[T]]) -> list[Line[T]]:
    """A line for each of the `figures` of each trial."""
    return [Line(name, row) for trial in trials for name in [trial.name] for row in figures(trial)]


def of_part(part: Callable[[T], S | None], show: Callable[[S], str]) -> Callable[[T], str]:
    """A cell of a part of a row's figures, which the row may lack."""

    def cell(figures: T) -> str:
        value = part(figures)
        return MISSING if value is None else show(value)

    return cell


def unit_column(
    name: str, unit: Unit, value: Callable[[T], float | None], wide: str | None = "", narrow: str | None = None
) -> Column[T]:
    """A column of `value` in `unit`."""
    return Column(name, in_unit(unit, value), unit.name, wide, narrow)


def in_unit(unit: Unit, value: Callable[[T], float | None]) -> Callable[[T], str]:
    """A cell that shows `value` in `unit`."""
    return lambda figures: unit.show(value(figures))
