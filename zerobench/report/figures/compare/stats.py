"""Test of whether one handful of times is longer than another, by how much, and whether so few could have shown it.

Times are skewed and few, so nothing is assumed of their law but that what sets the two groups apart is a factor. The
test is Mann and Whitney's; the factor and its interval are that same test turned round, so the two never disagree: the
95% interval leaves out 1 exactly where p is below 0.05 (but for ties).

The values must be independent of each other. Whoever calls decides what they are (speed.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zerobench.report.figures.stats import median

SIGNIFICANCE = 0.05
"""Two-sided level of the test, and 1 minus the interval's confidence."""

_MOST_EXACT = 2500
"""Pairs up to which orders are counted out; beyond, the normal approximation is as good."""

_MOST_ORDERS = 1000
"""Orders of two groups up to which all are tried where values are tied."""


@dataclass(frozen=True)
class Change:
    """Values of a second group against those of a first; ratios are second over first."""

    ratio: float
    """Hodges and Lehmann's estimate: the median over all pairs of the ratio."""
    interval: tuple[float, float] | None
    """95 % confidence interval of the ratio; None where so few values have none."""
    p_value: float
    """Two-sided."""
    smallest_p: float
    """The p if every value of one group were above all of the other's."""

    @property
    def can_be_significant(self) -> bool:
        """True if any outcome of this many values would have been significant."""
        return self.smallest_p < SIGNIFICANCE

    @property
    def is_significant(self) -> bool:
        """True if p is below the level, and the interval leaves out `no change`."""
        excluded = self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]
        return self.p_value < SIGNIFICANCE and excluded


def change(first: Sequence[float], second: Sequence[float]) -> Change:
    """Compare the values of `second` with those of `first`, all of them above 0; each group has at least one.

    The test: Mann & Whitney 1947, "On a test of whether one of two random variables is stochastically larger than
    the other". The estimate and interval, on logarithms, so that a shift is a factor: Hodges & Lehmann 1963,
    "Estimates of location based on rank tests", and Moses' interval (Hollander & Wolfe, "Nonparametric Statistical
    Methods", 4.2 and 4.3).
    """
    logs = np.subtract.outer(np.log(second), np.log(first)).ravel()
    logs.sort()
    rank = _interval_rank(len(first), len(second))
    interval = None if rank == 0 else (math.exp(logs[rank - 1]), math.exp(logs[-rank]))
    return Change(
        ratio=math.exp(median(logs.tolist()) or 0.0),
        interval=interval,
        p_value=_p_value(first, second),
        smallest_p=smallest_p(len(first), len(second)),
    )


def smallest_p(size: int, other_size: int) -> float:
    """The smallest two-sided p that so many values can have: two orders of C(m+n, m) are extreme."""
    return min(1.0, 2 / math.comb(size + other_size, size))


def repeats_needed() -> int:
    """Smallest number of values in each of two groups of one size with which the test can be significant."""
    return next(size for size in range(1, 100) if smallest_p(size, size) < SIGNIFICANCE)


def _p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Exact as far as the interval is, and for a few tied values; else the normal approximation, corrected for ties."""
    from scipy.stats import PermutationMethod, mannwhitneyu  # noqa: PLC0415 -- slow to import, and not always needed

    method: Any
    tied = len(set(first) | set(second)) < len(first) + len(second)
    if tied:
        few = math.comb(len(first) + len(second), len(first)) <= _MOST_ORDERS
        method = PermutationMethod() if few else "asymptotic"
    else:
        method = "exact" if len(first) * len(second) <= _MOST_EXACT else "asymptotic"
    return float(mannwhitneyu(second, first, alternative="two-sided", method=method).pvalue)


def _interval_rank(size: int, other_size: int) -> int:
    """Rank, from either end, of the pairs' ratios that bound the 95% interval; 0 where none do.

    The largest c for which P(U < c) is below 2.5% where there is no change; Hollander & Wolfe's C_alpha.
    """
    pairs = size * other_size
    if pairs > _MOST_EXACT:
        spread = math.sqrt(pairs * (size + other_size + 1) / 12)
        return max(0, math.floor(pairs / 2 - 1.959964 * spread))
    counts = _orders(size, other_size)
    most = SIGNIFICANCE / 2 * math.comb(size + other_size, size)
    rank, below = 0, 0
    while rank < pairs and below + counts[rank] < most:
        below += counts[rank]
        rank += 1
    return rank


def _orders(size: int, other_size: int) -> list[int]:
    """In how many of all orders of two groups U is 0, 1, 2 ...: the coefficients of the Gaussian binomial."""
    counts = [1] + [0] * (size * other_size)
    for k in range(1, size + 1):  # multiply by (1 - q^(other_size + k)), divide by (1 - q^k)
        for u in range(len(counts) - 1, other_size + k - 1, -1):
            counts[u] -= counts[u - other_size - k]
        for u in range(k, len(counts)):
            counts[u] += counts[u - k]
    return counts
