"""Memory of one place at one instant, term by term: how many bytes of which category, how they come about, and where
DeepSpeed or torch allocates them.

Whoever reads sums alone has them by category; explanations, departures from the paper and tables read the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from zerobench.common.vocabulary import Category


class Term(NamedTuple):
    """One summand of a category."""

    category: Category
    nbytes: int
    words: str = ""
    """How its bytes come about; empty where nothing is to be said."""
    source: str = ""
    """The file and function that allocate it."""
    others: Callable[[], Iterable[Term]] | None = None
    """What stands in its place at instants between those that the formulas name: other fills of a bucket."""


Bytes = Mapping[Category, int]
"""What lies in one place at one instant, by category."""


class Terms(Bytes):
    """The terms of one instant; as a mapping their sums by category, without those that hold nothing."""

    def __init__(self, *terms: Term) -> None:
        self.terms = tuple(term for term in terms if term.nbytes)

    @cached_property
    def _sums(self) -> dict[Category, int]:
        sums: dict[Category, int] = {}
        for term in self.terms:
            sums[term.category] = sums.get(term.category, 0) + term.nbytes
        return {category: nbytes for category, nbytes in sums.items() if nbytes}

    def __getitem__(self, category: Category) -> int:
        """The sum of a category's terms."""
        return self._sums[category]

    def __iter__(self) -> Iterator[Category]:
        """Categories that hold anything."""
        return iter(self._sums)

    def __len__(self) -> int:
        """Return the number of categories that hold anything."""
        return len(self._sums)

    def __repr__(self) -> str:
        return repr(self._sums)

    def of(self, *categories: Category) -> Terms:
        """Return the terms of these categories alone."""
        return Terms(*(term for term in self.terms if term.category in categories))


def hold(category: Category, nbytes: int, words: str = "", source: str = "") -> Terms:
    return Terms(Term(category, nbytes, words, source))


def of_elements(
    category: Category,
    element: int,
    elements: int,
    what: str,
    source: str = "",
    others: Callable[[], Iterable[Term]] | None = None,
) -> Terms:
    """`element` bytes for each of so many elements of something."""
    words = f"{what}: {element} bytes x {elements:,} elements"
    return Terms(Term(category, element * elements, words, source, others))


def add(*parts: Bytes) -> Terms:
    """All terms of several accounts."""
    terms: list[Term] = []
    for part in parts:
        terms += part.terms if isinstance(part, Terms) else (Term(*item) for item in part.items())
    return Terms(*terms)
