"""Order statistics: medians, their intervals, and the odd rank."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.known import known
from zerobench.report.figures.stats import (
    RankSpread,
    median,
    median_absolute_deviation,
    median_interval,
    spread_over_ranks,
)

NUMBERS = st.floats(-1e6, 1e6)


def test_statistics_of_nothing_are_none() -> None:
    assert median([]) is None
    assert median_absolute_deviation([]) is None
    assert median_interval([]) is None
    assert spread_over_ranks({}) is None


def test_the_deviation_is_not_moved_by_one_outlier() -> None:
    assert median_absolute_deviation([10.0, 11.0, 12.0, 13.0, 14.0]) == 1.0
    assert median_absolute_deviation([10.0, 11.0, 12.0, 13.0, 900.0]) == 1.0


def test_five_values_cannot_hold_the_median_with_95_percent() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None  # 1 - 2/32 = 0.9375
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0], confidence=0.93) == (1.0, 5.0)


@pytest.mark.parametrize(("size", "rank"), [(6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8)])
def test_the_interval_takes_the_order_statistics_of_the_printed_tables(size: int, rank: int) -> None:
    values = [float(value) for value in range(1, size + 1)]
    assert median_interval(values) == (rank, size + 1 - rank)


@pytest.mark.parametrize("size", [6, 7, 10, 11])
def test_the_interval_holds_the_true_median_as_often_as_it_says(size: int) -> None:
    """Every pattern of signs about a median of 0 is equally likely, so counting them all is exact."""
    held = 0
    for signs in itertools.product((-1, 1), repeat=size):
        bounds = known(median_interval([sign * (1.0 + index) for index, sign in enumerate(signs)]))
        held += bounds[0] <= 0 <= bounds[1]
    assert held / 2**size >= 0.95


@given(st.lists(NUMBERS, min_size=6, max_size=40))
def test_the_interval_encloses_the_sample_median(values: list[float]) -> None:
    bounds, middle = known(median_interval(values)), known(median(values))
    assert bounds[0] <= middle <= bounds[1]


def test_the_rank_farthest_from_the_median_is_the_odd_one() -> None:
    spread = spread_over_ranks({0: 10.0, 1: 10.0, 2: 7.0, 3: 11.0})
    assert spread == RankSpread(minimum=7.0, median=10.0, maximum=11.0, odd_rank=2, odd_value=7.0)
    assert spread.odd_deviation == pytest.approx(-0.3)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_of_two_ranks_the_higher_is_the_odd_one(first: float, second: float) -> None:
    spread = known(spread_over_ranks({0: first, 1: second}))
    assert spread.odd_rank == (None if first == second else int(second > first))


def test_equal_ranks_have_no_odd_one() -> None:
    spread = known(spread_over_ranks({0: 5.0, 1: 5.0, 2: 5.0}))
    assert spread.odd_rank is None
    assert spread.odd_deviation is None
