"""Streams of the simulated GPU: which one is current, and who waits for what, told in order."""

from __future__ import annotations

from typing import Any

import pytest

from zerobench.estimate.clock import trace
from zerobench.estimate.clock.trace import EventRecord, EventWait, listen
from zerobench.rank.worlds.simulation.streams import DEFAULT, Event, Stream, current, current_number, entered


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is told while the test runs."""
    monkeypatch.setattr(trace, "_listener", None)
    heard: list[Any] = []
    listen(heard.append)
    return heard


def test_the_default_stream_is_the_first_and_each_other_has_a_number_of_its_own() -> None:
    one, other = Stream(), Stream()
    assert (DEFAULT.number, current_number()) == (0, 0)
    assert 0 < one.number < other.number


def test_a_stream_is_current_within_and_the_one_before_again_after_also_behind_an_error() -> None:
    outer, inner = Stream(), Stream()
    with entered(outer):
        assert current() is outer
        with pytest.raises(ValueError, match="x"), entered(inner):
            assert current_number() == inner.number
            raise ValueError("x")
        with entered(None):
            assert current() is outer
        assert current() is outer
    assert current() is DEFAULT


def test_a_wait_names_the_stream_that_waits_and_the_event_that_the_other_recorded(told: list[Any]) -> None:
    one, other = Stream(), Stream()
    one.wait_stream(other)
    [recorded, waited] = told
    assert recorded == EventRecord(other.number, recorded.event)
    assert waited == EventWait(one.number, recorded.event)


def test_the_host_waits_where_a_stream_or_an_event_is_synchronised_with(told: list[Any]) -> None:
    stream, event = Stream(), Event()
    stream.synchronize()
    event.record(stream)
    event.synchronize()
    [first, host, second, host_again] = told
    assert (first.stream, host) == (stream.number, EventWait(None, first.event))
    assert (second.stream, host_again) == (stream.number, EventWait(None, second.event))
    assert second.event > first.event


def test_an_event_is_of_the_current_stream_unless_one_is_named(told: list[Any]) -> None:
    stream, other, event = Stream(), Stream(), Event()
    with entered(stream):
        event.record()
        event.wait()
        event.wait(other)
    assert [item.stream for item in told] == [stream.number, stream.number, other.number]
    assert len({item.event for item in told}) == 1


def test_nobody_waits_for_an_event_that_was_not_recorded(told: list[Any]) -> None:
    event = Event()
    event.wait(Stream())
    event.synchronize()
    Stream().wait_event(event)
    assert told == []


def test_an_event_that_is_recorded_again_is_another_one(told: list[Any]) -> None:
    stream, event = Stream(), Event()
    assert stream.record_event(event) is event
    stream.record_event(event)
    first, second = told
    assert first.event != second.event
    assert (stream.query(), event.query(), event.elapsed_time(None)) == (True, True, 0.0)
