"""The learning rate warms up linearly and decays by a cosine to a tenth of its peak."""

from __future__ import annotations

import pytest

from zerobench.spec.trial import HyperparameterSpec
from zerobench.worker.schedule import learning_rate

H = HyperparameterSpec(learning_rate=1.0, warmup_steps=4, decay_steps=104)


def test_the_warm_up_is_linear():
    assert [learning_rate(s, H) for s in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_the_decay_ends_at_a_tenth_of_the_peak_and_stays():
    assert learning_rate(104, H) == pytest.approx(0.1)
    assert learning_rate(10_000, H) == pytest.approx(0.1)


def test_half_way_it_is_half_way():
    assert learning_rate(54, H) == pytest.approx(0.55)


def test_without_warm_up_it_starts_at_the_peak():
    assert learning_rate(0, HyperparameterSpec(learning_rate=2.0, warmup_steps=0)) == pytest.approx(2.0)
