"""Peaks of the same trial in two runs, category by category, to the byte.

Memory takes no statistics: the same software does the same allocations. Where repeats do differ (resident memory of a
process, threads that race for a buffer), the middle repeat of each run stands for it, so that its categories still add
up to its total, and the range over the repeats is beside it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zerobench.common.vocabulary import Category, Place, StepKind
from zerobench.records.instants import Instant
from zerobench.report.figures.compare.sides import LEDGER, RESERVED, RESIDENT, USED, Repeat, Where
from zerobench.report.figures.memory_difference import CategoryDifference, difference

_PLACES = (Place.DEVICE.value, RESERVED, USED, RESIDENT, Place.HOST.value, Place.NVME.value)


def place_name(where: Where) -> str:
    """`device`, `resident start-up`: as tables and sentences say it."""
    place, step = where
    return place.replace("nvme", "NVMe") + (" start-up" if step is StepKind.FIRST else "")


@dataclass(frozen=True)
class RepeatedPeak:
    """The peak of one place over the repeats of one run."""

    middle: Repeat
    """The repeat whose peak is the median, the lower one of two."""
    instant: Instant
    """Its peak."""
    smallest_bytes: int
    largest_bytes: int

    @property
    def spread_bytes(self) -> int:
        """Spread of the repeats; 0 where memory is as deterministic as it should be."""
        return self.largest_bytes - self.smallest_bytes


@dataclass(frozen=True)
class MemoryChange:
    """The peak of one place in both runs."""

    label: str
    """The trial's."""
    where: Where
    base: RepeatedPeak
    new: RepeatedPeak

    @property
    def more_bytes(self) -> int:
        """By how much NEW's peak is larger; below 0 where it is smaller."""
        return self.new.instant.total_bytes - self.base.instant.total_bytes

    @property
    def fraction(self) -> float | None:
        """`more_bytes` as a fraction of BASE's peak; None where that is not above 0."""
        total = self.base.instant.total_bytes
        return self.more_bytes / total if total > 0 else None

    @property
    def growth(self) -> float:
        """As a fraction of BASE's; in bytes where that is not above 0."""
        return self.more_bytes if self.fraction is None else self.fraction

    @property
    def is_within_spread(self) -> bool:
        """True if repeats of one run lie farther apart than the runs do."""
        return abs(self.more_bytes) <= max(self.base.spread_bytes, self.new.spread_bytes)

    @property
    def is_equal(self) -> bool:
        """True if the totals and all categories are equal to the byte, in all repeats."""
        return not (self.more_bytes or self.differences or self.base.spread_bytes or self.new.spread_bytes)

    @property
    def differences(self) -> list[CategoryDifference]:
        """The categories that differ, the largest difference first; they add up to `more_bytes`."""
        return difference(self.base.instant, self.new.instant)

    @property
    def appearing(self) -> CategoryDifference | None:
        """The largest category that NEW's peak holds and BASE's does not."""
        return next((one for one in self.differences if one.b_bytes > 0 >= one.a_bytes), None)

    @property
    def largest(self) -> Category | None:
        """The category that explains most of `more_bytes`: of those that went the same way, where the peak moved."""
        named = [difference for difference in self.differences if difference.category is not Category.TOTAL]
        causes = [difference for difference in named if difference.more_bytes * self.more_bytes > 0] or named
        return causes[0].category if causes else None


def memory_changes(label: str, base: Sequence[Repeat], new: Sequence[Repeat]) -> list[MemoryChange]:
    """Return the peaks of the trial called `label` that both runs measured, steady steps before start-up.

    A place of the ledger that one run holds nothing in is 0 bytes there. Host memory that both runs have is compared
    where either offloads: elsewhere it is the machine's affair, not the trial's.
    """
    offloads = any(repeat.spec.offloaded_to for repeat in (*base, *new))
    changes = []
    for where in ((place, step) for step in (StepKind.STEADY, StepKind.FIRST) for place in _PLACES):
        old, late = _repeated_peak(base, where), _repeated_peak(new, where)
        if old and late and where[0] == Place.HOST and not offloads:
            continue
        old, late = old or _nothing(base, where, late), late or _nothing(new, where, old)
        if old is not None and late is not None:
            changes.append(MemoryChange(label, where, old, late))
    return changes


def measured_in_new_only(base: Sequence[Repeat], new: Sequence[Repeat]) -> list[Where]:
    """Return the peaks of counters (reserved, used, resident) that NEW read and BASE did not."""
    counters = [place for place in _PLACES if place not in LEDGER]
    wheres = [(place, step) for step in (StepKind.STEADY, StepKind.FIRST) for place in counters]
    return [where for where in wheres if _repeated_peak(new, where) and not _repeated_peak(base, where)]


def _nothing(repeats: Sequence[Repeat], where: Where, other: RepeatedPeak | None) -> RepeatedPeak | None:
    """Return a peak of 0 bytes with the categories of `other`; None where `repeats` kept no ledger of that step.

    A counter that was not read is not 0.
    """
    place, step = where
    counted = next((repeat for repeat in repeats if any((one, step) in repeat.peaks for one in LEDGER)), None)
    if other is None or counted is None or place not in LEDGER:
        return None
    empty = replace(other.instant, total_bytes=0, categories=dict.fromkeys(other.instant.categories, 0))
    return RepeatedPeak(counted, empty, 0, 0)


def _repeated_peak(repeats: Sequence[Repeat], where: Where) -> RepeatedPeak | None:
    peaks = {index: repeat.peaks[where] for index, repeat in enumerate(repeats) if where in repeat.peaks}
    if not peaks:
        return None
    totals = [instant.total_bytes for instant in peaks.values()]
    middle = statistics.median_low(totals)
    index = next(index for index, instant in peaks.items() if instant.total_bytes == middle)
    return RepeatedPeak(repeats[index], peaks[index], min(totals), max(totals))
