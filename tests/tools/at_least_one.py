"""Guards loops that assert: a loop with nothing to go over passes, and shows nothing."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def at_least_one(values: Iterable[T]) -> list[T]:
    """Return `values` as a list, and fail the test where there are none."""
    found = list(values)
    assert found, "nothing to look at"
    return found
