"""Turns a phase's births and deaths into three figures for each category: live, at the peak, own peak."""

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
    """Source of a composition, for readers that need more of the phase than its peak (rank/ledger/course.py)."""

    live: Sequence[tuple[Thing, int]]
    events: Sequence[tuple[Thing, int]]
    category_of: Callable[[Thing], Key]
    storage_of: Callable[[Thing], Any]
    """Storage (rank/ledger/storages.py) of a thing; None if no tensor was seen to own it."""


@dataclass
class Composition(Generic[Key]):
    """Bytes of each category of one place over one phase."""

    live: Counter[Key]
    at_peak: Counter[Key]
    own_peak: Counter[Key]
    total_peak: int
    at_tensor_peak: Counter[Key] | None = None
    """At the peak of tensors alone, without kernels' working memory; None if that is not known separately."""
    walk: Walk[Any, Key] | None = None
    peak_occupied: int | None = None
    """Most bytes of occupied segments; None without a CUDA allocator."""


def things_at_peak(live: Iterable[tuple[Thing, int]], events: Sequence[tuple[Thing, int]]) -> Counter[Thing]:
    """Bytes of each thing at the peak of their sum within a phase."""
    sizes: Counter[Thing] = Counter()
    for thing, nbytes in live:
        sizes[thing] += nbytes
    total = peak = sizes.total()
    since = len(events)
    for index in reversed(range(len(events))):
        total -= events[index][1]
        if total > peak:
            peak, since = total, index
    for thing, delta in events[since:]:
        sizes[thing] -= delta
    return +sizes


def replay(
    live: Iterable[tuple[Thing, int]],
    events: Sequence[tuple[Thing, int]],
    category_of: Callable[[Thing], Key],
    storage_of: Callable[[Thing], Any] = lambda _: None,
) -> Composition[Key]:
    """Walk a phase backwards from its end, so that names learnt late count from the start.

    `live`: bytes of things alive at the end; `events`: changes in bytes in order of time; totals are sums over all
    things, whatever their category. `storage_of`: storage of a thing, if one was seen.
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
