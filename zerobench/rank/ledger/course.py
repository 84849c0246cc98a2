"""Memory by category over the course of one phase: a few points of the replayed phase, including its peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.rank.ledger.replay import Composition, Walk
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import MemoryCourse, MemoryCourses, RankRecord

POINTS = 64
"""Points of a phase: as many as a chart 300 pixels wide can show."""


class Courses:
    """Courses of start-up and of each phase of the steady step; for repeated phases, the one with the largest peak."""

    def __init__(self) -> None:
        self._found: dict[tuple[StepKind, Phase], tuple[int, MemoryCourse]] = {}

    def enter(self, step: StepKind, phase: Phase, here: Composition[Category | None]) -> None:
        """Record one entry of a phase on the device."""
        is_kept = phase is Phase.INIT or step is StepKind.STEADY
        before = self._found.get((step, phase))
        if here.walk is not None and is_kept and (before is None or before[0] <= here.total_peak):
            self._found[step, phase] = here.total_peak, course(step, phase, here.walk)

    def forget(self, step: StepKind) -> None:
        """Drop the courses of a kind of step."""
        self._found = {key: entry for key, entry in self._found.items() if key[0] is not step}

    def all(self) -> list[MemoryCourse]:
        """All courses so far, in the order in which the phases were first entered."""
        return [phase_course for _, phase_course in self._found.values()]


def course(step: StepKind, phase: Phase, walk: Walk[Any, Category | None], points: int = POINTS) -> MemoryCourse:
    """First and last state of the phase and, for each of `points` stretches between, its fullest state.

    The site of a category is the one where most of its bytes in the phase were allocated.
    """
    instants = _instants([delta for _, delta in walk.events], points)
    now: Counter[Category] = Counter()
    sites: Counter[tuple[Category, str]] = Counter()
    for thing, nbytes in walk.live:
        category = walk.category_of(thing) or Category.UNATTRIBUTED
        now[category] += nbytes
        sites[category, _site(walk, thing)] += nbytes
    kept_instants, states = set(instants), [Counter(now)]
    for instant in range(len(walk.events) - 1, -1, -1):  # backwards: categories are known only at the end
        thing, delta = walk.events[instant]
        category = walk.category_of(thing) or Category.UNATTRIBUTED
        now[category] -= delta
        if delta < 0:
            sites[category, _site(walk, thing)] -= delta
        if instant in kept_instants:
            states.append(Counter(now))
    states.reverse()
    present = [category for category in Category if any(state[category] for state in states)]
    return MemoryCourse(
        step=step,
        phase=phase,
        num_events=len(walk.events),
        events=instants,
        sizes_bytes={category: [state[category] for state in states] for category in present},
        sites=_largest(sites, present),
    )


def _site(walk: Walk[Any, Category | None], thing: Any) -> str:
    storage = walk.storage_of(thing)
    return "" if storage is None else str(storage.birth.name)


def _instants(deltas: Sequence[int], points: int) -> list[int]:
    """Event counts after which to keep the state; 0 is the state before the first event."""
    totals = list(accumulate(deltas, initial=0))
    length = max(1, -(-len(totals) // points))
    largest = (
        max(range(begin, min(begin + length, len(totals))), key=totals.__getitem__)
        for begin in range(0, len(totals), length)
    )
    return sorted({0, *largest, len(deltas)})


def _largest(sites: Counter[tuple[Category, str]], present: Sequence[Category]) -> dict[Category, str]:
    """Name of the largest site of each category in `present`; sites without a name are skipped."""
    largest: dict[Category, str] = {}
    for (category, site), nbytes in sites.most_common():
        if nbytes > 0 and site and category in present:
            largest.setdefault(category, site)
    return largest


def write_courses(folder: TrialFolder, record: RankRecord, courses: list[MemoryCourse]) -> None:
    """Write the courses next to the rank's record: a page reads only those of the trials that it draws."""
    if courses:
        document = MemoryCourses(trial_id=record.trial_id, rank=record.rank, phases=courses)
        write_whole(folder.memory_courses(record.rank), document.model_dump_json())
