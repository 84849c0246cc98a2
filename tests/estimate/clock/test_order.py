"""Which of two steps is the longer, and how sure that is."""

from __future__ import annotations

import math

import pytest

from zerobench.estimate.clock.assumed import HOST_WORDS
from zerobench.estimate.clock.order import least_ratio
from zerobench.estimate.clock.step import TENTH, ExpectedStep, Sides, expected


def step(step_s: float, spread: float = 0.0, **assumed: float | Sides) -> ExpectedStep:
    return expected((step_s, 0.0, 0.0), spread, assumed)


def spread_of(ratio: float, expected_ratio: float = 1.1) -> float:
    """That makes of an expected ratio what it is at least."""
    return math.log(expected_ratio / ratio) / TENTH


def test_what_both_assume_makes_their_order_no_less_sure() -> None:
    longer, shorter = (step(seconds, links=0.5, gpu=Sides(0.1, 0.4)) for seconds in (1.1, 1.0))
    assert longer.low_s < shorter.high_s
    assert least_ratio(longer, shorter) == pytest.approx(1.1)


def test_what_one_of_them_assumes_and_what_nothing_brings_does() -> None:
    longer = step(1.1, 0.03, gpu=0.5, offload=0.2)
    assert spread_of(least_ratio(longer, step(1.0, 0.04, gpu=0.5))) == pytest.approx(math.hypot(0.03, 0.04, 0.2))
    assert spread_of(least_ratio(step(1.1), step(1.0, overlap=0.1))) == pytest.approx(0.1)


def test_a_slower_host_delays_the_one_more_that_waits_for_it_more() -> None:
    def at_host(step_s: float, words: str, below: float, above: float) -> ExpectedStep:
        return expected((step_s, 0.0, 0.0), 0.0, {f"{HOST_WORDS} {words}": Sides(below, above)})

    waits, waits_more = at_host(1.0, "9 us, 5%", 0.02, 0.1), at_host(1.1, "9 us, 30%", 0.3, 0.6)
    assert spread_of(least_ratio(waits_more, waits)) == pytest.approx(0.3 - 0.02), "at a fast host"
    rarely, never = at_host(1.1, "9 us, 1%", 0.01, 0.05), step(1.0)
    assert spread_of(least_ratio(rarely, never)) == pytest.approx(0.01)
    assert spread_of(least_ratio(step(1.1), waits_more), 1.0) == pytest.approx(0.6), "at a slow one"
