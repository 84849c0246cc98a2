"""The expected time of a step: computing, what communication adds to it, the update, and how sure that is.

Communication that overlaps with computing adds what is longer than the computing of all blocks but one, and the one
block that nothing runs beside: the first gather, or the last reduction. What does not overlap adds up whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from zerobench.timing.passes import Passes

_TENTH = 1.2816
"""Standard deviations between the median of a normal distribution and its tenth and ninetieth percentiles."""


@dataclass(frozen=True)
class Phases:
    """Seconds that something takes in a micro-batch's forward and backward pass, and in the update after them."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    update_s: float = 0.0


@dataclass(frozen=True)
class Interval:
    """Seconds that a step is expected to take: the median, and what it lies between in eight of ten cases."""

    step_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class Expected(Interval):
    """One step with what it is made of."""

    compute_s: float
    exposed_communication_s: float
    update_s: float
    assumptions: tuple[str, ...]
    """What was not fitted to runs, each of which makes the interval wider."""


def step(
    computing: Passes, micro_batches: int, communication: Phases, update_s: float, *, overlaps: bool, step_s: float
) -> tuple[float, float, float]:
    """Seconds of computing, of communication that nothing hides, and of the update with its own communication.

    `communication` is that of one micro-batch's passes, and of the update.
    """
    compute = micro_batches * (computing.forward_s + computing.backward_s)
    exposed = micro_batches * (
        _exposed(communication.forward_s, computing.layers * computing.block_forward_s, computing.layers, overlaps)
        + _exposed(communication.backward_s, computing.layers * computing.block_backward_s, computing.layers, overlaps)
    )
    return compute, exposed, update_s + communication.update_s + step_s


def _exposed(communication_s: float, compute_s: float, layers: int, overlaps: bool) -> float:
    if not overlaps:
        return communication_s
    first = communication_s / layers
    return first + max(0.0, communication_s - first - compute_s * (layers - 1) / layers)


def expected(
    compute_s: float, exposed_s: float, update_s: float, spread: float, assumptions: dict[str, float]
) -> Expected:
    """The answer; `assumptions` maps what was assumed to the spread that it brings (of the time's logarithm)."""
    total = compute_s + exposed_s + update_s
    factor = math.exp(_TENTH * math.hypot(spread, *assumptions.values()))
    return Expected(total, total / factor, total * factor, compute_s, exposed_s, update_s, tuple(assumptions))
