"""Replaying a phase backwards gives what it held at each instant."""

from hypothesis import given
from hypothesis import strategies as st

from zerobench.rank.ledger.replay import replay, things_at_peak


def test_the_peak_is_the_instant_of_the_largest_total_not_of_each_category():
    events = [("a", 10), ("b", 5), ("a", -10), ("c", 8)]
    result = replay([("b", 5), ("c", 8)], events, lambda thing: thing)
    assert result.total_peak == 15
    assert result.at_peak == {"a": 10, "b": 5, "c": 0}
    assert result.live == {"b": 5, "c": 8}
    assert result.own_peak == {"a": 10, "b": 5, "c": 8}


def test_what_was_there_before_the_phase_counts_from_its_start():
    result = replay([("old", 100)], [("new", 7), ("new", -7)], lambda thing: thing)
    assert result.at_peak == {"old": 100, "new": 7}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 100)), max_size=60), st.randoms())
def test_at_every_peak_the_categories_sum_to_the_total(births, random):
    alive, events, sizes, running, peak = [], [], {}, 0, 0
    for number, (category, size) in enumerate(births):
        thing = (category, number)
        sizes[thing] = size
        events.append((thing, size))
        alive.append(thing)
        running += size
        peak = max(peak, running)
        if alive and random.random() < 0.5:
            dead = alive.pop(random.randrange(len(alive)))
            events.append((dead, -sizes[dead]))
            running -= sizes[dead]
    result = replay([(t, sizes[t]) for t in alive], events, lambda thing: thing[0])
    assert result.live.total() == running
    assert result.total_peak == peak
    assert result.at_peak.total() == peak
    assert all(result.own_peak[c] >= result.at_peak[c] for c in result.own_peak)


def test_what_was_held_at_the_peak_is_told_thing_by_thing():
    events = [("a", 10), ("b", 5), ("a", -10), ("c", 8)]
    assert things_at_peak([("b", 5), ("c", 8), ("old", 2)], events) == {"a": 10, "b": 5, "old": 2}
    assert things_at_peak([("old", 2)], []) == {"old": 2}
