"""Which of two steps is the longer, and how sure that is.

What both take for granted makes both longer or both shorter: intervals that overlap for that alone say nothing of their
order. A host that is slower delays the one that waits for it more than the other.
"""

from __future__ import annotations

import math

from zerobench.estimate.clock.assumed import cause_of
from zerobench.estimate.clock.step import TENTH, ExpectedStep, sides_of


def least_ratio(one: ExpectedStep, other: ExpectedStep) -> float:
    """Of the seconds of `one` to those of `other`, what it is no less than in nine of ten cases."""
    ones, others = ({cause_of(words): spread for words, spread in step.assumed.items()} for step in (one, other))
    pairs = [(sides_of(ones.get(cause, 0.0)), sides_of(others.get(cause, 0.0))) for cause in ones | others]
    less = [max(0.0, mine.below - its.below, its.above - mine.above) for mine, its in pairs]
    return one.step_s / other.step_s / math.exp(TENTH * math.hypot(one.spread, other.spread, *less))
