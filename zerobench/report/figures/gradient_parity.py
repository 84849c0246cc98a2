"""Are gradients as large as they must be? Held against the reference's by their global norm before clipping.

A loss cannot tell: AdamW divides by what it multiplies, and clipping takes any factor off again. Sums where means are
meant, over ranks or over micro-batches, are the faults that a distributed strategy makes, and they are factors of two
and more. The norm is one number a step that every strategy has whole (RankRecord.grad_norms).
"""

import math
from collections.abc import Iterable, Sequence

from zerobench.config.trial.trial import Precision

Norms = Sequence[float | None]

NORM_TOLERANCES: dict[Precision, float] = {Precision.FP32: 0.05, Precision.BF16: 0.1, Precision.FP16: 0.4}
"""Largest distance of two norms (`distance`) at which two strategies still agree; a factor of two, either way, is 1.

fp32: all strategies lay within 1e-6 of the single process over five steps of a tiny model. The margin is for large
tensors: on a CPU torch adds up a tensor's squares in fp32, which came out 8e-5 too small at 4 million elements, 0.003
at 40 million and 0.011 at 100 million, where DeepSpeed adds in fp64 and who divides a tensor adds less.

bf16: each addition of a rank's or a micro-batch's gradient rounds it, by 2**-9 of itself at most and at random, so that
the norm of many hardly moves, and weights are rounded after each update. They lay within 1.3e-3; weights drift further
apart with the steps and the model, and 0.1 still sees a factor of 1.1.

fp16: finer than bf16, but a loss scale that is too large leaves steps out, in one strategy and not in another. Norms
are then those of other samples after as many updates, or of the same samples after fewer: whichever is nearer counts.
After two steps left out they lay within 0.05.
"""

DRIFTED_TOLERANCE = max(NORM_TOLERANCES.values())
"""The same where an optimizer's update differs by design (moments in 8 bits cut from partitions), so that weights drift
apart and the gradients with them."""


_JUMP = 2.0
_ALWAYS_STABLE = 2


def num_stable_steps(norms: Norms) -> int | None:
    """The leading steps before one whose gradients' norm is more than twice each earlier one's; None: all are stable.

    From there on a run amplifies what rounding makes: a Llama of 1B on an H100, at a learning rate of 3e-4 and two
    steps of warm-up, had norms of 16, 14, 4, 8, 82, and losses under ZeRO-3 that lay 0.011 from the single process's at
    the fourth step and 1.5 at the fifth. A fault of a strategy shows in the steps before. The first two are always
    stable: the gradients at the initial weights, and those after one update.
    """
    largest = 0.0
    for step, norm in enumerate(norms):
        if norm is None or not math.isfinite(norm):
            continue
        if step >= _ALWAYS_STABLE and norm > _JUMP * largest > 0:
            return step
        largest = max(largest, norm)
    return None


def largest_distance(ours: Norms, theirs: Norms, precision: Precision) -> float | None:
    """The largest distance over the steps in which both are known; infinite with a norm that is not finite.

    None where there is no such step.
    """
    by_step = list(zip(ours, theirs, strict=False))
    if precision is not Precision.FP16:
        return _largest(by_step)
    both_taken = [(a, b) for a, b in by_step if _is_taken(a) and _is_taken(b)]
    by_update = zip(filter(_is_taken, ours), filter(_is_taken, theirs), strict=False)
    distances = [far for pairs in (both_taken, by_update) if (far := _largest(pairs)) is not None]
    return min(distances, default=None)


def distance(norm: float, other: float) -> float:
    """By how much the larger exceeds the smaller, as a fraction of the smaller."""
    if not (math.isfinite(norm) and math.isfinite(other)):
        return math.inf
    small, large = sorted((norm, other))
    if small == large:
        return 0.0
    return large / small - 1 if small > 0 else math.inf


def _largest(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    return max((distance(a, b) for a, b in pairs if a is not None and b is not None), default=None)


def _is_taken(norm: float | None) -> bool:
    """True unless a loss scale left the step out."""
    return norm is None or not math.isinf(norm)
