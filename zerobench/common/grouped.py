"""Groups values by a common key."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Value = TypeVar("Value")
Key = TypeVar("Key", bound=Hashable)


def grouped(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Group `values` by `key`, in order of first occurrence."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups
