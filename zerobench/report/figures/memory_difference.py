"""Differences between two instants: the bytes of each category on both sides, the largest difference first."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Category
from zerobench.records.instants import Instant


@dataclass(frozen=True)
class CategoryDifference:
    """One category at two instants."""

    category: Category
    a_bytes: int
    b_bytes: int

    @property
    def more_bytes(self) -> int:
        """By how much `b` is larger; below zero where it is smaller."""
        return self.b_bytes - self.a_bytes


def difference(a: Instant, b: Instant) -> list[CategoryDifference]:
    """The categories in which `a` and `b` differ, by the size of the difference; they add up to that of the totals.

    Where one of the instants has no categories, the totals alone. What the categories of an instant lack of its total
    is unattributed.
    """
    if not a.categories or not b.categories:
        differences = [CategoryDifference(Category.TOTAL, a.total_bytes, b.total_bytes)]
    else:
        left, right = _complete(a), _complete(b)
        differences = [CategoryDifference(c, left.get(c, 0), right.get(c, 0)) for c in Category]
    return sorted((entry for entry in differences if entry.more_bytes), key=lambda entry: -abs(entry.more_bytes))


def _complete(instant: Instant) -> dict[Category, int]:
    parts = dict(instant.categories)
    rest = instant.total_bytes - sum(parts.values())
    if rest:
        parts[Category.UNATTRIBUTED] = parts.get(Category.UNATTRIBUTED, 0) + rest
    return parts


def merged(
    differences: Sequence[CategoryDifference], together: Collection[Category]
) -> list[tuple[CategoryDifference, int]]:
    """`differences` with the categories `together` added up into the first of them, and how many each stands for."""
    entries: list[tuple[CategoryDifference, int]] = []
    group = [entry for entry in differences if entry.category in together]
    if group:
        a_bytes, b_bytes = sum(entry.a_bytes for entry in group), sum(entry.b_bytes for entry in group)
        entries.append((CategoryDifference(group[0].category, a_bytes, b_bytes), len(group)))
    entries += [(entry, 1) for entry in differences if entry.category not in together]
    return sorted((entry for entry in entries if entry[0].more_bytes), key=lambda entry: -abs(entry[0].more_bytes))
