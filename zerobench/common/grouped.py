"""Values together that have a key in common."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Value = TypeVar("Value")
Key = TypeVar("Key", bound=Hashable)


def grouped(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """`values` by their `key`; keys and values in the order of first sight."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups
