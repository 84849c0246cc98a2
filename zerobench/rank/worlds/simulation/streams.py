"""Streams and events of the simulated GPU: all work completes at once, but the current stream is tracked.

The caching allocator needs it, since it never reuses a block of one stream on another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from zerobench.estimate.clock.trace import EventRecord, EventWait, tell

_numbers = count()
_events = count()


class Stream:
    """A stream whose work completes at once; waits are only reported."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(_numbers)

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that has happened."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True


class Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self._number: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        self._number = next(_events)
        tell(EventRecord((stream or current()).number, self._number))

    def wait(self, stream: Stream | None = None) -> None:
        if self._number is not None:
            tell(EventWait((stream or current()).number, self._number))

    def synchronize(self) -> None:
        if self._number is not None:
            tell(EventWait(None, self._number))

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Any) -> float:
        return 0.0


DEFAULT = Stream()
_current = [DEFAULT]


def current(_device: Any = None) -> Stream:
    """Return the current stream."""
    return _current[-1]


def current_number() -> int:
    """Return the number of the current stream, 0 for the default stream."""
    return _current[-1].number


@contextmanager
def entered(stream: Stream | None) -> Iterator[None]:
    """Context in which `stream` is current; None changes nothing, as in torch."""
    _current.append(current() if stream is None else stream)
    try:
        yield
    finally:
        _current.pop()
