"""Pieces of a document that are no table of trials: rows of anything, sentences, warnings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from zerobench.common.units import counted
from zerobench.report.tables.model import Column

T = TypeVar("T")

MOST_NAMED = 20
"""Rows and sentences of one kind that are shown; the rest are counted."""


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A table whose rows are not each a trial's; its first column names them."""

    columns: Sequence[Column[T]]
    rows: Sequence[T]
    kind: Callable[[T], str] = lambda _: ""
    """Mark of a row on the page besides its words: see report/tables/grid.py."""


@dataclass(frozen=True)
class VerdictSentence:
    """A sentence with a verdict in it, which a terminal colours."""

    before: str
    verdict: str
    is_good: bool
    after: str


@dataclass(frozen=True)
class Part:
    """A title, a line that says how to read what follows, a table, lines, points of a list, warnings."""

    title: str
    caption: str = ""
    table: Listing[Any] | None = None
    text: Sequence[str | VerdictSentence] = ()
    """Lines that stand as they are."""
    quiet: Sequence[str] = ()
    """Lines of lesser weight, below."""
    points: Sequence[str] = ()
    warnings: Sequence[str] = ()


def few(sentences: Sequence[str], where: str = "", most: int = MOST_NAMED) -> list[str]:
    """The first of many sentences, the rest counted; `where` says who has them."""
    rest = len(sentences) - most
    return [*sentences[:most], *([f"and {rest} more{where}"] if rest > 0 else [])]


def first(rows: Sequence[T], most: int = MOST_NAMED) -> tuple[Sequence[T], list[str]]:
    """The first rows of a long table, and a line that counts the rest."""
    rest = len(rows) - most
    return rows[:most], [f"{counted(rest, 'more row')} not shown"] if rest > 0 else []
