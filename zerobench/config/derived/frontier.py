"""Search for the largest value of a growing quantity that fits into memory, with few tries.

Memory of a training step is nearly linear in the micro batch, the sequence length and the depth, so each try is where
the line through the nearest known points meets the capacity; if the line misleads, the bracket is halved. An allocator
may make memory jagged: a GPT-2 of three layers needs, simulated too, a quarter more at each odd micro batch from 1,779
on than at both its neighbours. So tries are as round as the tolerance allows, like the sizes that users train with.

A search is a generator that requests one value at a time, so that the tries of many searches can be made together, and
a try may be simulated or measured.
"""

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

GROWTH = 32
"""Most times by which a try may exceed the largest fitting value: a line through two small values reaches too far."""

FLAT_GROWTH = 8
"""Factor of the next try while memory does not grow yet because the peak is elsewhere, such as at start-up."""

APART = 8
"""Two tries define a line if they differ by at least one part in this many of the value."""

STEP_BACK = 16
"""One part in this many of the value to step back if a start that should fit does not; twice as far each time."""


@dataclass(frozen=True)
class Try:
    """One value and its peak memory in bytes; None if it ran out of memory."""

    value: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Frontier:
    """Result of a search."""

    largest: Try | None
    """Largest value that fits; None if even the least does not."""
    too_large: Try | None
    """Smallest value known not to fit; None if the largest allowed one fits."""
    tries: tuple[Try, ...]
    """All tries, in order."""


Search = Generator[int, int | None, Frontier]
"""Yields a value, is sent its peak bytes (None: out of memory), and returns the frontier."""


def search(
    capacity_bytes: int,
    *,
    start: int,
    most: int,
    least: int = 1,
    within: float = 0.0,
    bytes_per_step: float | None = None,
) -> Search:
    """Search `least` to `most` for the largest value whose peak is at most `capacity_bytes`, beginning at `start`.

    The search ends if the smallest value known not to fit is the next one, or within that share of the largest known to
    fit. It assumes that a larger value never needs less memory. `bytes_per_step`: slope from an earlier search
    (`slope`), if `start` is near the edge; it is used until the tries define a line. Raises ValueError unless least <=
    start <= most.
    """
    if not 1 <= least <= start <= most:
        raise ValueError(f"least {least}, start {start}, most {most}: must increase from 1")
    bracket = _Bracket(capacity_bytes, least, most, within, bytes_per_step)
    value = bracket.rounded(start, least, most)
    while True:
        peak_bytes = yield value
        bracket.add(Try(value, peak_bytes))
        following = bracket.following()
        if following is None:
            return Frontier(bracket.fits, bracket.too_large, tuple(bracket.tries))
        value = following


def search_together(
    searches: Mapping[Key, Search], peaks: Callable[[Mapping[Key, int]], Mapping[Key, int | None]]
) -> dict[Key, Frontier]:
    """Run several searches, with the next values of all in one call of `peaks`.

    `peaks` returns the peak of each key passed to it; a key that it leaves out is given up and has no frontier.
    """
    values = {key: next(steps) for key, steps in searches.items()}
    frontiers: dict[Key, Frontier] = {}
    while values:
        answers = peaks(values)
        following: dict[Key, int] = {}
        for key, answer in answers.items():
            try:
                following[key] = searches[key].send(answer)
            except StopIteration as end:
                frontiers[key] = end.value
        values = following
    return {key: frontiers[key] for key in searches if key in frontiers}


def slope(tries: Sequence[Try], capacity_bytes: int) -> float | None:
    """Bytes per step of the value near the capacity; None if no two tries define it.

    Taken from the two tries on either side of the capacity. If these are neighbours, or one is unknown, from the try
    nearest to the capacity and the nearest one apart from it: between neighbours the allocator's jumps outweigh the
    slope.
    """
    known = [(attempt.value, attempt.peak_bytes) for attempt in tries if attempt.peak_bytes is not None]
    near = sorted(known, key=lambda point: abs(point[1] - capacity_bytes))
    fits = [point for point in known if point[1] <= capacity_bytes]
    beyond = [point for point in known if point[1] > capacity_bytes]
    pairs = [(max(fits), min(beyond))] if fits and beyond else []
    pairs += [(near[0], point) for point in near[1:]]
    for point, other in pairs:
        if APART * abs(other[0] - point[0]) >= point[0]:
            rise = (other[1] - point[1]) / (other[0] - point[0])
            return rise if rise > 0 else None
    return None


class _Bracket:
    """The tries so far, with the frontier between them."""

    def __init__(
        self, capacity_bytes: int, least: int, most: int, within: float, bytes_per_step: float | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.least, self.most, self.within = least, most, within
        self.bytes_per_step = bytes_per_step
        self.tries: list[Try] = []
        self.fits: Try | None = None
        self.too_large: Try | None = None
        self._widths: list[int] = []
        self._beyond = 0
        """How often the line ended at the largest fitting value; after the first time, it ends too early."""

    def add(self, attempt: Try) -> None:
        """Record a try, and the bracket's width, which shows whether the line converges."""
        self.tries.append(attempt)
        if attempt.peak_bytes is not None and attempt.peak_bytes <= self.capacity_bytes:
            self.fits = attempt
        else:
            self.too_large = attempt
        self._widths.append(self._ceiling() - self._floor())

    def following(self) -> int | None:
        """Next value to try; None if the frontier is as close as requested."""
        floor, ceiling = self._floor(), self._ceiling()
        tolerance = int(self.within * floor)
        if ceiling - floor <= (1 if self.too_large is None else max(1, tolerance)):
            return None
        step = min(max(1, tolerance // 2), (ceiling - floor) // 2)  # nearer to what is known nothing new is learnt
        last = ceiling - 1 if self.too_large is None else ceiling - step
        return self.rounded(max(floor + step, min(self._guess(step), last)), floor + step, last)

    def rounded(self, value: int, lowest: int, highest: int) -> int:
        """Multiple of the largest power of two that the tolerance allows: next below `value`, else next above."""
        tolerance = max(1, int(self.within * value) // 2)
        unit = 1 << (tolerance.bit_length() - 1)
        below = value - value % unit
        return next((near for near in (below, below + unit) if lowest <= near <= highest), value)

    def _guess(self, step: int) -> int:
        """Estimate the edge from the line, as long as the tries confirm it."""
        guess = self._line_end()
        if guess is None:
            if self.too_large is not None:
                return self._middle()
            # Beyond all tries, none of which says where the line ends: far, where memory does not grow yet.
            return (2 if len(self.tries) < 2 else FLAT_GROWTH) * self._floor()
        ends_here = guess <= self._floor()
        self._beyond += ends_here
        if ends_here and (self._beyond == 1 or self.too_large is None):
            return self._floor() + (step << (self._beyond - 1))  # the next should not fit; where it does, go further
        if self.too_large is not None:
            return self._middle() if self._is_disproved(guess) or self._is_slow() else guess
        return min(guess, GROWTH * self._floor())

    def _middle(self) -> int:
        """Middle of the bracket, or just below a start that should have been near the edge and was beyond it."""
        if self.fits is None and self.bytes_per_step is not None:
            part = max(2, STEP_BACK >> (len(self.tries) - 1))
            return self._ceiling() - max(1, self._ceiling() // part)
        return (self._floor() + self._ceiling()) // 2

    def _floor(self) -> int:
        return self.least - 1 if self.fits is None else self.fits.value

    def _ceiling(self) -> int:
        """Smallest value that need not be tried."""
        return self.most + 1 if self.too_large is None else self.too_large.value

    def _is_disproved(self, guess: int) -> bool:
        # Memory ended below the line's end, or more fitted beyond it, so the peaks do not show the cause
        too_early = self._beyond > 1 and guess <= self._floor()
        ran_out = self.too_large is not None and self.too_large.peak_bytes is None
        return too_early or (ran_out and guess >= self._ceiling())

    def _is_slow(self) -> bool:
        # Two tries in a row left more than half of the bracket: the line misleads there
        return self.too_large is not None and len(self._widths) > 2 and self._widths[-1] > self._widths[-3] / 2

    def _line_end(self) -> int | None:
        """Largest value that fits by a line through the try nearest to the capacity; None if no slope is known.

        Floats suffice: a value off by one only costs one more try.
        """
        known = [(attempt.value, attempt.peak_bytes) for attempt in self.tries if attempt.peak_bytes is not None]
        rise = slope(self.tries, self.capacity_bytes) or self.bytes_per_step
        if not known or not rise:
            return None
        value, peak_bytes = min(known, key=lambda point: abs(point[1] - self.capacity_bytes))
        return value + math.floor((self.capacity_bytes - peak_bytes) / rise)
