"""The expected time of a step: its parts, its interval, and what it takes for granted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zerobench.estimate.clock.rates import Rates
from zerobench.estimate.clock.replay import LATE_CLASS, UPDATE_CLASS, Timeline

TENTH = 1.2816
"""Standard deviations between the median of a normal distribution and its tenth and ninetieth percentiles."""


class Sides(NamedTuple):
    """A spread that is not alike on both sides."""

    below: float
    above: float


@dataclass(frozen=True)
class Interval:
    """Seconds that a step is expected to take: the median, and what it lies between in eight of ten cases."""

    step_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class ExpectedStep(Interval):
    """One step with what it is made of."""

    compute_s: float
    exposed_communication_s: float
    update_s: float
    assumed: Mapping[str, float | Sides]
    """What was not fitted to runs, and the spread (of the time's logarithm) that each makes the interval wider by."""
    bubble_s: float = 0.0
    """In which a pipeline's slowest stage waits for others."""
    spread: float = 0.0
    """Of the time's logarithm, what no assumption brings."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was not fitted to runs."""
        return tuple(self.assumed)

    @property
    def parts(self) -> dict[str, float]:
        """Its parts' seconds by their names for people."""
        bubbles = {"bubbles": self.bubble_s} if self.bubble_s else {}
        return {
            "compute": self.compute_s,
            "exposed communication": self.exposed_communication_s,
            **bubbles,
            "optimizer step and host overhead": self.update_s,
        }


def replayed(timeline: Timeline, rates: Rates, micro_batches: float) -> tuple[float, float, float]:
    """The same of a step of so many micro-batches that was replayed; what is not computing in its passes is exposed,
    whatever it waits for.

    Hidden is what kernels and collectives together take longer than the passes: so long both must have run at once.
    """
    exposed = sum(timeline.exposed().values())
    kernels = sum(seconds for name, seconds in timeline.classes.items() if name not in {UPDATE_CLASS, LATE_CLASS})
    hidden = max(0.0, timeline.total_s("communication") + kernels - timeline.passes_s)
    update = timeline.step_s - timeline.passes_s
    return timeline.passes_s - exposed, exposed + rates.contention * hidden, update + rates.between_s(micro_batches)


def sides_of(spread: float | Sides) -> Sides:
    """Below and above, of a spread that may be alike on both."""
    return spread if isinstance(spread, Sides) else Sides(spread, spread)


def expected(parts: Sequence[float], spread: float, assumptions: Mapping[str, float | Sides]) -> ExpectedStep:
    """The answer: `parts` are seconds of computing, exposed communication, the update, and bubbles if there are any;
    `assumptions` maps what was assumed to the spread that it brings (of the time's logarithm).
    """
    total, (compute_s, exposed_s, update_s, *bubbles) = sum(parts), parts
    sides = map(sides_of, assumptions.values())
    shorter, longer = (math.exp(TENTH * math.hypot(spread, *side)) for side in zip(*sides, (0.0, 0.0), strict=True))
    return ExpectedStep(
        total, total / shorter, total * longer, compute_s, exposed_s, update_s, assumptions, sum(bubbles), spread
    )
