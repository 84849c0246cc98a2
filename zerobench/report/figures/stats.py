"""Order statistics of a handful of values: step times and ranks are few and skewed, so no means, no normal law."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def median(values: Sequence[float]) -> float | None:
    """The median of `values`, None when there are none."""
    return statistics.median(values) if values else None


def median_absolute_deviation(values: Sequence[float]) -> float | None:
    """The median distance to the median, unscaled: half of the values lie within it. None for no values.

    One outlier does not move it (Hampel 1974, "The influence curve and its role in robust estimation").
    """
    if not values:
        return None
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The narrowest symmetric pair of order statistics that holds the true median with `confidence`.

    The number of values below the median is binomial(n, 1/2) whatever their law, so the k-th smallest and
    k-th largest hold it with probability 1 - 2 P(X < k) (Conover, "Practical Nonparametric Statistics", 3.2).
    None where even smallest and largest do not reach `confidence`: five values or fewer at 0.95.
    """
    ordered = sorted(values)
    size = len(ordered)
    best, below = None, 0
    for k in range(1, size // 2 + 1):
        below += math.comb(size, k - 1)  # 2**size * P(X < k), in exact integers
        if 1 - 2 * below / 2**size < confidence:
            break
        best = (ordered[k - 1], ordered[size - k])
    return best


def median_range(values: Sequence[float]) -> tuple[float, float]:
    """Range of the median with 95 % confidence; of five values or fewer, which cannot say, all of them."""
    return median_interval(values) or (min(values), max(values))


@dataclass(frozen=True)
class RankSpread:
    """One figure over the ranks of a trial; never their sum or mean."""

    minimum: float
    median: float
    maximum: float
    odd_rank: int | None
    """The rank farthest from the median; None where all are equal."""
    odd_value: float | None

    @property
    def odd_deviation(self) -> float | None:
        """Distance of the odd rank from the median, as a fraction of it; None where it is undefined."""
        if self.odd_value is None or self.median == 0:
            return None
        return self.odd_value / self.median - 1


def spread_over_ranks(by_rank: Mapping[int, float]) -> RankSpread | None:
    """Minimum, median, maximum and the odd rank of `by_rank` (rank to value); None for no ranks.

    Of two ranks equally far off the higher value is the outlier, because it is the one that runs out first.
    """
    if not by_rank:
        return None
    middle = statistics.median(by_rank.values())
    farthest = max(abs(value - middle) for value in by_rank.values())
    # The median of two values is off by a rounding error, which must not decide which of them is the odd one.
    far = [rank for rank in sorted(by_rank) if abs(by_rank[rank] - middle) >= farthest * (1 - 1e-9)]
    odd = max(far, key=lambda rank: by_rank[rank])
    low, high = min(by_rank.values()), max(by_rank.values())
    alike = low == high
    return RankSpread(low, middle, high, None if alike else odd, None if alike else by_rank[odd])
