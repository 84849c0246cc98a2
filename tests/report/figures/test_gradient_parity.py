"""Norms of gradients held against a reference's."""

import math

import pytest

from zerobench.config.trial.trial import Precision
from zerobench.report.figures.gradient_parity import NORM_TOLERANCES, distance, largest_distance, num_stable_steps

FP32, BF16, FP16 = Precision.FP32, Precision.BF16, Precision.FP16


def test_every_precision_has_a_tolerance_that_sees_a_factor_of_two_and_of_its_root() -> None:
    assert set(NORM_TOLERANCES) == set(Precision)
    assert max(NORM_TOLERANCES.values()) < math.sqrt(2) - 1


def test_twice_and_half_lie_equally_far() -> None:
    assert distance(2.0, 1.0) == distance(1.0, 2.0) == distance(0.5, 1.0) == 1.0


def test_equal_norms_lie_nowhere_apart_zeros_too() -> None:
    assert distance(3.0, 3.0) == distance(0.0, 0.0) == 0.0
    assert distance(0.0, 1e-9) == math.inf


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_agrees_with_nothing(broken: float) -> None:
    assert largest_distance([1.0, broken], [1.0, 1.0], FP32) == math.inf
    assert largest_distance([1.0, broken], [1.0, broken], BF16) == math.inf


def test_only_steps_whose_norm_both_know_are_compared() -> None:
    assert largest_distance([None, 1.5, 9.0], [7.0, 1.0], FP32) == 0.5
    assert largest_distance([None, 1.0], [1.0, None], FP32) is None
    assert largest_distance([], [1.0], FP16) is None


def test_the_farthest_step_decides() -> None:
    assert largest_distance([1.0, 1.0, 3.0], [1.0, 1.0, 1.0], BF16) == 2.0


def test_steps_that_a_loss_scale_left_out_are_no_fault_in_fp16() -> None:
    left_out = [math.inf, math.inf, 4.0, 3.0]
    assert largest_distance(left_out, [4.0, 3.0, 2.0, 1.0], FP16) == 0.0  # after as many updates
    assert largest_distance(left_out, [8.0, 8.0, 4.0, 3.0], FP16) == 0.0  # on the same samples


def test_twice_too_large_is_seen_in_fp16_though_steps_were_left_out() -> None:
    far = largest_distance([math.inf, 9.0, 8.1], [5.0, 4.5, 4.0], FP16)
    assert far is not None
    assert far > NORM_TOLERANCES[FP16]


def test_nan_is_no_step_that_was_left_out() -> None:
    assert largest_distance([math.nan, 1.0], [1.0, 1.0], FP16) == math.inf


def test_a_step_that_more_than_doubles_all_earlier_norms_ends_what_is_judged() -> None:
    measured_on_an_h100 = [15.644, 13.745, 4.166, 8.088, 82.414, 12.642, 64.451]
    assert num_stable_steps(measured_on_an_h100) == 4
    assert num_stable_steps([15.644, 13.745, 4.166, 8.088, 31.2]) is None


def test_the_first_two_steps_are_judged_whatever_their_norms() -> None:
    assert num_stable_steps([1.0, 90.0, 120.0]) is None
    assert num_stable_steps([1.0, 90.0, 190.0]) == 2


def test_norms_that_nobody_knows_or_that_are_not_finite_end_nothing() -> None:
    assert num_stable_steps([None, 2.0, math.inf, 3.0]) is None
    assert num_stable_steps([]) is None
