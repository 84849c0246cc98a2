"""Streams and events of the simulated GPU: everything is done at once, and which stream is current is remembered.

That is what the caching allocator asks: blocks that were given out on one stream are never reused on another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

_numbers = count()


class Stream:
    """Everything is done at once, so there is nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(_numbers)

    def synchronize(self) -> None:
        """Done."""

    def wait_stream(self, _other: Any) -> None:
        """Done."""

    def wait_event(self, _event: Any) -> None:
        """Done."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event or Event()

    def query(self) -> bool:
        """Done."""
        return True


class Event:
    """It has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Any event."""

    def record(self, _stream: Any = None) -> None:
        """Done."""

    def wait(self, _stream: Any = None) -> None:
        """Done."""

    def synchronize(self) -> None:
        """Done."""

    def query(self) -> bool:
        """Done."""
        return True

    def elapsed_time(self, _end: Any) -> float:
        """No time passes."""
        return 0.0


DEFAULT = Stream()
_current = [DEFAULT]


def current(_device: Any = None) -> Stream:
    """The stream that work is given to now."""
    return _current[-1]


def current_number() -> int:
    """Its number, 0 for the default stream."""
    return _current[-1].number


@contextmanager
def entered(stream: Stream | None) -> Iterator[None]:
    """Within it, `stream` is current; None changes nothing, as with torch's."""
    _current.append(current() if stream is None else stream)
    try:
        yield
    finally:
        _current.pop()
