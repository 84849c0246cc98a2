"""The test and the interval behind `compare`, held against a textbook, against scipy, and against each other."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from tests.tools.known import known
from zerobench.report.figures.compare.stats import SIGNIFICANCE, change, repeats_needed, smallest_p

TERM = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
EARLY = [1.15, 0.88, 0.90, 0.74, 1.21]
"""Permeability of the chorioamnion (Hollander & Wolfe, "Nonparametric Statistical Methods", table 4.1)."""


def test_estimate_interval_and_p_are_those_of_the_textbook() -> None:
    found = change([math.exp(x) for x in EARLY], [math.exp(x) for x in TERM])
    assert math.log(found.ratio) == pytest.approx(0.305)  # example 4.3
    assert [math.log(bound) for bound in known(found.interval)] == pytest.approx([-0.15, 0.76])  # example 4.4
    assert found.p_value == pytest.approx(0.2544, abs=5e-5)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (4, 4), (3, 5), (5, 4), (9, 7), (12, 12)])
def test_the_interval_leaves_out_no_change_exactly_where_the_test_is_significant(sizes: tuple[int, int]) -> None:
    draw = np.random.default_rng(sum(sizes))
    outcomes = set()
    for shift in np.linspace(0, 0.3, 60):
        base, new = np.exp(draw.normal(0, 0.1, sizes[0])), np.exp(draw.normal(shift, 0.1, sizes[1]))
        found = change(base.tolist(), new.tolist())
        significant = mannwhitneyu(new, base, method="exact").pvalue < SIGNIFICANCE
        outside = found.interval is not None and not found.interval[0] <= 1 <= found.interval[1]
        assert outside == significant == found.is_significant
        outcomes.add(significant)
    assert outcomes == ({True, False} if smallest_p(*sizes) < SIGNIFICANCE else {False})


def test_the_interval_holds_the_true_ratio_at_least_as_often_as_it_says() -> None:
    draw = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        found = change(np.exp(draw.gamma(2, 0.1, 5)).tolist(), (1.1 * np.exp(draw.gamma(2, 0.1, 5))).tolist())
        assert found.interval is not None
        held += found.interval[0] <= 1.1 <= found.interval[1]
    assert held >= 380 - 2 * math.sqrt(400 * 0.05 * 0.95)


@pytest.mark.parametrize(("sizes", "expected"), [((1, 1), 1.0), ((3, 3), 0.1), ((4, 4), 2 / 70), ((3, 5), 2 / 56)])
def test_the_smallest_p_is_that_of_two_groups_that_do_not_overlap(sizes: tuple[int, int], expected: float) -> None:
    assert smallest_p(*sizes) == pytest.approx(expected)
    base, new = [1.0 + i for i in range(sizes[0])], [100.0 + i for i in range(sizes[1])]
    assert change(base, new).p_value == pytest.approx(expected)


def test_four_repeats_a_side_are_the_fewest_that_can_show_anything() -> None:
    assert repeats_needed() == 4
    assert not change([1.0, 1.1, 1.2], [9.0, 9.1, 9.2]).can_be_significant
    assert change([1.0, 1.1, 1.2, 1.3], [9.0, 9.1, 9.2, 9.3]).is_significant


def test_equal_times_are_no_change() -> None:
    found = change([0.25] * 5, [0.25] * 5)
    assert (found.ratio, found.p_value, found.is_significant) == (1.0, 1.0, False)


def test_groups_too_large_to_count_out_have_the_interval_of_the_normal_approximation() -> None:
    draw = np.random.default_rng(3)
    base, new = np.exp(draw.normal(0, 0.1, 60)).tolist(), np.exp(draw.normal(0.1, 0.1, 60)).tolist()
    whole, part = change(base, new), change(base[:49], new[:49])  # 60 x 60 pairs are approximated, 49 x 49 counted
    assert whole.interval is not None
    width, exact_width = (math.log(one[1] / one[0]) for one in (whole.interval, known(part.interval)))
    assert width == pytest.approx(exact_width * math.sqrt(49 / 60), rel=0.15)
    assert whole.interval[0] < math.exp(0.1) < whole.interval[1]
