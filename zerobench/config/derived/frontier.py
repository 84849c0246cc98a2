"""How much fits: the largest value of something that memory grows with, found with few tries.

Memory of a training step is nearly a straight line in the micro batch, the sequence length and the depth, so each try
is where the line through the nearest known points meets the capacity; where the line misleads, the bracket is halved.
An allocator may make a comb of the line: a GPT-2 of three layers needs, simulated too, a quarter more at each odd micro
batch from 1,779 on than at both its neighbours. So tries are as round as the tolerance allows, as the sizes are that
people train with.

A search is a generator that asks for one value at a time, so that the tries of many searches can be made together, and
nothing here knows whether a try is simulated or measured.
"""

import math
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

GROWTH = 32
"""By how much a try may exceed the largest that fits so far: a line through two small values reaches too far."""

FLAT_GROWTH = 8
"""How far to go where memory does not grow yet: something else, the start-up say, is the peak."""

APART = 8
"""Two tries make a line where they differ by at least this part of the value."""

STEP_BACK = 16
"""Where a start that was expected to fit does not, by which part of it to step back; twice as far each time."""


@dataclass(frozen=True)
class Try:
    """One value, and the memory it took at its peak; None where it ran out of memory, so that nobody knows."""

    value: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Frontier:
    """Where fitting ends."""

    largest: Try | None
    """The largest value that fits; None where not even the least does."""
    too_large: Try | None
    """The least value known not to fit; None where the largest that may be asked for fits."""
    tries: tuple[Try, ...]
    """All tries, in their order."""


Search = Generator[int, int | None, Frontier]
"""Asks for a value, is sent its peak bytes (None: out of memory), and returns the frontier."""


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

    The search ends where the least value known not to fit is the next one, or lies within that share of the largest
    known to fit. It takes for granted that a larger value never needs less. `bytes_per_step`, where an earlier search
    tells it (slope), says that `start` is near the edge and how steep memory is there: until tries make a line of their
    own, it leads on from the nearest of them. Raises ValueError unless least <= start <= most.
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
    """The frontiers of `searches`, the next values of all that still search tried in one call of `peaks`.

    `peaks` answers for each key it is asked about; a key it leaves out is given up and has no frontier.
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
    """Bytes that a value one larger takes more, near where memory ends; None where no two tries say it.

    Of the line through the two tries between which memory ends. Where these are neighbours, or where one is not known,
    through the nearest to the capacity and the nearest that lies apart from it: between neighbours an allocator's whims
    outweigh the slope.
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
    """The tries so far, between which the frontier lies."""

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
        """How often the line ended at the largest that fits; more than once, and it ends too early."""

    def add(self, attempt: Try) -> None:
        """Take a try in; the bracket's width is kept, to see whether the line leads anywhere."""
        self.tries.append(attempt)
        if attempt.peak_bytes is not None and attempt.peak_bytes <= self.capacity_bytes:
            self.fits = attempt
        else:
            self.too_large = attempt
        self._widths.append(self._ceiling() - self._floor())

    def following(self) -> int | None:
        """The next value to try; None where the frontier is known as closely as is asked."""
        floor, ceiling = self._floor(), self._ceiling()
        tolerance = int(self.within * floor)
        if ceiling - floor <= (1 if self.too_large is None else max(1, tolerance)):
            return None
        step = min(max(1, tolerance // 2), (ceiling - floor) // 2)  # nearer to what is known nothing new is learnt
        last = ceiling - 1 if self.too_large is None else ceiling - step
        return self.rounded(max(floor + step, min(self._guess(step), last)), floor + step, last)

    def rounded(self, value: int, lowest: int, highest: int) -> int:
        """The multiple next below `value`, else next above, of the largest power of two that the tolerance allows."""
        tolerance = max(1, int(self.within * value) // 2)
        unit = 1 << (tolerance.bit_length() - 1)
        below = value - value % unit
        return next((near for near in (below, below + unit) if lowest <= near <= highest), value)

    def _guess(self, step: int) -> int:
        """Where the edge may be: where the line ends, as long as tries bear it out."""
        guess = self._where_the_line_ends()
        if guess is None:
            if self.too_large is not None:
                return self._between()
            # Beyond all tries, none of which says where the line ends: far, where memory does not grow yet.
            return (2 if len(self.tries) < 2 else FLAT_GROWTH) * self._floor()
        ends_here = guess <= self._floor()
        self._beyond += ends_here
        if ends_here and (self._beyond == 1 or self.too_large is None):
            return self._floor() + (step << (self._beyond - 1))  # the next should not fit; where it does, go further
        if self.too_large is not None:
            return self._between() if self._is_disproved(guess) or self._is_slow() else guess
        return min(guess, GROWTH * self._floor())

    def _between(self) -> int:
        """The middle of the bracket; just below a start that should have been near the edge and was beyond it."""
        if self.fits is None and self.bytes_per_step is not None:
            part = max(2, STEP_BACK >> (len(self.tries) - 1))
            return self._ceiling() - max(1, self._ceiling() // part)
        return (self._floor() + self._ceiling()) // 2

    def _floor(self) -> int:
        return self.least - 1 if self.fits is None else self.fits.value

    def _ceiling(self) -> int:
        """The least value that need not be tried."""
        return self.most + 1 if self.too_large is None else self.too_large.value

    def _is_disproved(self, guess: int) -> bool:
        """Whether memory ended below the line's end, or more fitted beyond it: what takes it is not in the peaks."""
        too_early = self._beyond > 1 and guess <= self._floor()
        ran_out = self.too_large is not None and self.too_large.peak_bytes is None
        return too_early or (ran_out and guess >= self._ceiling())

    def _is_slow(self) -> bool:
        """Whether two tries in a row left more than half of the bracket: the line misleads there."""
        return self.too_large is not None and len(self._widths) > 2 and self._widths[-1] > self._widths[-3] / 2

    def _where_the_line_ends(self) -> int | None:
        """The largest value that fits by a line through the try nearest to the capacity; None where no slope is known.

        Floats do for it: a value that is off by one is only tried once more.
        """
        known = [(attempt.value, attempt.peak_bytes) for attempt in self.tries if attempt.peak_bytes is not None]
        rise = slope(self.tries, self.capacity_bytes) or self.bytes_per_step
        if not known or not rise:
            return None
        value, peak_bytes = min(known, key=lambda point: abs(point[1] - self.capacity_bytes))
        return value + math.floor((self.capacity_bytes - peak_bytes) / rise)
