"""Peaks by category, the parts of each end to end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Category, Place
from zerobench.records.instants import Instant
from zerobench.report.charts.shown import whole
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.words import palette

ORDER = list(palette.CATEGORY_COLOURS)
"""Groups of categories, from the axis on."""


@dataclass(frozen=True)
class Part:
    """A category within a bar."""

    category: str
    group: str
    num_bytes: int
    start: int
    """Bytes from the axis."""
    end: int


@dataclass(frozen=True)
class Bar:
    """A peak of one place, its parts end to end."""

    name: str
    instant: Instant
    parts: Sequence[Part]
    is_measured: bool
    capacity_bytes: int | None = None
    """Memory of the device that it was on, if known."""
    needed_bytes: int | None = None
    """All that a device has to hold, where that is known."""
    limit: int | None = None
    """Length at which a bar of another order of magnitude is cut off, for the others to be seen."""

    @property
    def whole(self) -> int:
        """The peak that the parts add up to."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def needed(self) -> int:
        """Need of the device, where it is known to be more than the peak."""
        return max(self.parts[-1].end, self.needed_bytes or 0)

    @property
    def reach(self) -> int:
        """Bytes from the axis to the end of what is needed, as drawn."""
        return self._cut(self.needed)

    @property
    def drawn(self) -> int:
        """Bytes from the axis to the bar's end."""
        return self._cut(self.parts[-1].end)

    @property
    def is_cut(self) -> bool:
        """True if it is drawn shorter than it is."""
        return self.reach < self.needed

    def span(self, part: Part) -> tuple[int, int]:
        """From where to where a part is drawn."""
        return self._cut(part.start), self._cut(part.end)

    def _cut(self, num_bytes: int) -> int:
        return num_bytes if self.limit is None else min(num_bytes, self.limit)


TrialBar = tuple[TrialFigures, Bar]


def stacked(trials: Sequence[TrialFigures], place: Place, without: Collection[Category] = ()) -> list[TrialBar]:
    """A bar for each whole trial whose peak of `place` is known by category, but for the categories `without`."""
    bars = []
    for trial in whole(trials):
        instant = trial.peak(place)
        if instant is not None and (parts := parts_of(instant, without)):
            needed = trial.device_needed_bytes if place is Place.DEVICE else None
            bar = Bar(trial.marked_label, instant, parts, trial.is_measured, trial.capacity_bytes, needed)
            bars.append((trial, bar))
    return bars


def parts_of(instant: Instant, without: Collection[Category] = ()) -> list[Part]:
    """The categories of `instant` end to end.

    One below zero (resident memory that was never touched) is in the whole and takes no room.
    """
    parts, end = [], 0
    sizes = [(palette.GROUP_OF[c.value], c.value, size) for c, size in instant.categories.items() if c not in without]
    for group, category, size in sorted(sizes, key=lambda part: ORDER.index(part[0])):
        parts.append(Part(category, group, size, end, end + max(0, size)))
        end += max(0, size)
    return parts
