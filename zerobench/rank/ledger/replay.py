"""From a phase's births and deaths to three figures for each category: live, at the peak, own peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Walk(Generic[Thing, Key]):
    """What a composition was made of, for who wants more of the phase than its peak (rank/ledger/course.py)."""

    live: Sequence[tuple[Thing, int]]
    events: Sequence[tuple[Thing, int]]
    category_of: Callable[[Thing], Key]
    storage_of: Callable[[Thing], Any]
    """The storage (rank/ledger/storages.py) of a thing; None where no tensor was seen to own it."""


@dataclass
class Composition(Generic[Key]):
    """Bytes of each category of one place over one phase."""

    live: Counter[Key]
    at_peak: Counter[Key]
    own_peak: Counter[Key]
    total_peak: int
    at_tensor_peak: Counter[Key] | None = None
    """At the instant when tensors held most, kernels' own working memory left out; None where it is not known apart."""
    walk: Walk[Any, Key] | None = None
    peak_occupied: int | None = None
    """The most that segments held in which anything lay; None where there is no CUDA allocator to say."""


def things_at_peak(live: Iterable[tuple[Thing, int]], events: Sequence[tuple[Thing, int]]) -> Counter[Thing]:
    """Bytes of each thing at the instant of a phase when all of them together were largest."""
    held: Counter[Thing] = Counter()
    for thing, nbytes in live:
        held[thing] += nbytes
    total = peak = held.total()
    since = len(events)
    for index in reversed(range(len(events))):
        total -= events[index][1]
        if total > peak:
            peak, since = total, index
    for thing, delta in events[since:]:
        held[thing] -= delta
    return +held


def replay(
    live: Iterable[tuple[Thing, int]],
    events: Sequence[tuple[Thing, int]],
    category_of: Callable[[Thing], Key],
    storage_of: Callable[[Thing], Any] = lambda _: None,
) -> Composition[Key]:
    """Walk a phase backwards from its end, so that names learnt late count from the start.

    `live` holds what is alive at the end with its bytes, `events` the changes in bytes in order of time. The totals
    are sums over all things whatever their category. `storage_of` gives the storage of a thing, where one was seen.
    """
    live = list(live)
    now: Counter[Key] = Counter()
    for thing, nbytes in live:
        now[category_of(thing)] += nbytes
    total = now.total()
    walk = Walk(live, events, category_of, storage_of)
    result = Composition(Counter(now), Counter(now), Counter(now), total, walk=walk)
    totals = list(accumulate((-delta for _, delta in reversed(events)), initial=total))
    result.total_peak = max(totals)
    peak = totals.index(result.total_peak)
    for place, (thing, delta) in enumerate(reversed(events), 1):
        key = category_of(thing)
        now[key] -= delta
        if delta < 0:
            result.own_peak[key] = max(result.own_peak[key], now[key])
        if place == peak:
            result.at_peak = Counter(now)
    return result
