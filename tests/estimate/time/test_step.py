"""What communication adds to computing, by hand: pipes that run beside each other, and what sticks out."""

import math

import pytest

from zerobench.estimate.clock.rates import Rates, shipped_rates
from zerobench.estimate.clock.step import TENTH, Sides, expected
from zerobench.estimate.time.passes import Passes
from zerobench.estimate.time.step import Bucket, Phases, exposed_s, hidden_reducing_s, hidden_s, last_reduced_s, step

LAYERS = 10
PASSES = Passes(block_forward_s=1.0, block_backward_s=2.0, layers=LAYERS, head_s=0.0)
"""Ten seconds forward and twenty backward."""


def rates(**changed: float) -> Rates:
    """Nothing slows anything, but for what is `changed`."""
    none = {"contention": 0.0, "jitter": 0.0, "step_s": 0.0, "micro_batch_s": 0.0}
    return next(iter(shipped_rates().kinds.values())).model_copy(update=none | changed)


@pytest.mark.parametrize(("moving", "beside", "layers", "hidden"), [
    (5.0, 10.0, 10, 4.5), (10.0, 10.0, 10, 9.0), (20.0, 10.0, 10, 9.0), (5.0, 10.0, 1, 0.0), (0.0, 10.0, 10, 0.0)
])  # fmt: skip
def test_moving_goes_on_beside_all_blocks_but_one(moving: float, beside: float, layers: int, hidden: float) -> None:
    assert hidden_s(moving, beside, layers) == pytest.approx(hidden)


@pytest.mark.parametrize(("forward", "backward", "overlaps", "expected_s"), [
    (5.0, 5.0, True, (0.5, 0.5)),
    (5.0, 5.0, False, (5.0, 5.0)),
    (30.0, 40.0, True, (21.0, 22.0)),
    (0.0, 0.0, True, (0.0, 0.0)),
    (0.0, 0.0, False, (0.0, 0.0)),
])  # fmt: skip
def test_collectives_that_do_not_fit_beside_computing_stick_out(
    forward: float, backward: float, overlaps: bool, expected_s: tuple[float, float]
) -> None:
    found = exposed_s(PASSES, Phases(forward, backward), rates(), overlaps=overlaps)
    assert found == pytest.approx(expected_s)


def test_what_is_hidden_slows_kernels_by_the_contention() -> None:
    """4.5 s of either pass run beside kernels, a tenth slower."""
    found = exposed_s(PASSES, Phases(5.0, 5.0), rates(contention=0.1), overlaps=True)
    assert found == pytest.approx((0.5 + 0.45, 0.5 + 0.45))
    whole = exposed_s(PASSES, Phases(5.0, 5.0), rates(contention=0.1), overlaps=False)
    assert whole == pytest.approx((5.0, 5.0))


def test_a_step_is_its_micro_batches_and_what_only_some_of_them_move() -> None:
    compute, exposed, update = step(
        PASSES, 4, Phases(5.0, 5.0, update_s=3.0), 2.0, rates(step_s=0.5, micro_batch_s=0.25), ranks=1, overlaps=False
    )
    assert (compute, exposed, update) == pytest.approx((120.0, 40.0, 2.0 + 3.0 + 0.5 + 4 * 0.25))
    once = step(PASSES, 4, Phases(5.0, 5.0, rounds=1), 2.0, rates(), ranks=1, overlaps=False)
    assert once == pytest.approx((120.0, 10.0, 2.0))
    first = step(PASSES, 4, Phases(5.0, 5.0, first_forward_s=8.0), 2.0, rates(), ranks=1, overlaps=False)
    assert first == pytest.approx((120.0, 43.0, 2.0))


def test_all_ranks_wait_for_the_slowest_the_longer_the_more_there_are() -> None:
    for ranks in (1, 2, 64):
        compute, *_ = step(PASSES, 1, Phases(), 0.0, rates(jitter=0.01), ranks=ranks, overlaps=True)
        assert compute == pytest.approx(30 * (1 + 0.01 * math.log(ranks)))


def test_within_a_block_only_the_host_goes_on() -> None:
    """Ten blocks whose device waits 0.1 s for the host forward and 0.2 s backward: so much is made up for."""
    idle = Passes(1.0, 2.0, LAYERS, 0.0, idle_forward_s=0.1, idle_backward_s=0.2)
    assert exposed_s(idle, Phases(5.0, 5.0, is_within=True), rates(), overlaps=True) == pytest.approx((4.0, 3.0))
    assert exposed_s(idle, Phases(0.5, 0.5, is_within=True), rates(), overlaps=True) == (0.0, 0.0)


@pytest.mark.parametrize(("reduced", "awaited", "last_share", "expected_s"), [
    (10.0, 0.0, 0.0, 1.0), (10.0, 0.0, 0.3, 3.0), (10.0, 4.0, 0.3, 1.8), (10.0, 12.0, 0.3, 0.0), (0.0, 0.0, 0.3, 0.0)
])  # fmt: skip
def test_the_last_reduction_is_a_blocks_or_what_comes_when_all_has_run(
    reduced: float, awaited: float, last_share: float, expected_s: float
) -> None:
    phases = Phases(reduced_s=reduced, awaited_s=awaited, last_share=last_share)
    assert last_reduced_s(PASSES, phases) == pytest.approx(expected_s)


@pytest.mark.parametrize(("buckets", "moving", "hidden"), [
    ((), 10.0, 0.0),
    ((Bucket(1.0, 1.0),), 10.0, 0.0),
    ((Bucket(0.5, 1.0),), 10.0, 10.0),
    ((Bucket(0.5, 1.0),), 15.0, 10.0),
    ((Bucket(0.5, 0.5), Bucket(1.0, 0.5)), 10.0, 5.0),
    ((Bucket(0.5, 0.5), Bucket(1.0, 0.5)), 40.0, 10.0),
    ((Bucket(0.25, 0.25), Bucket(0.5, 0.25), Bucket(1.0, 0.5)), 8.0, 4.0),
])  # fmt: skip
def test_buckets_move_one_after_another_beside_a_backward_pass_of_twenty_seconds(
    buckets: tuple[Bucket, ...], moving: float, hidden: float
) -> None:
    phases = Phases(backward_s=moving, reduced_s=moving, buckets=buckets)
    assert hidden_reducing_s(moving, PASSES, phases) == pytest.approx(hidden)


def test_on_the_stream_that_computes_the_device_computes_after_each_bucket() -> None:
    """Half of the backward pass, a bucket, the other half, and the last bucket: nothing is hidden."""
    halves = (Bucket(0.5, 0.5), Bucket(1.0, 0.5))
    phases = Phases(backward_s=8.0, reduced_s=8.0, buckets=halves, reduces_apart=False)
    assert hidden_reducing_s(8.0, PASSES, phases) == pytest.approx(0.0)


def test_after_the_pass_a_bucket_waits_for_the_host_too() -> None:
    """Two buckets of 4 s, which the host issues in 6 s each once the pass is done: the last one ends at 16."""
    late = Passes(1.0, 2.0, LAYERS, 0.0, reducing_issued_s=12.0)
    phases = Phases(backward_s=8.0, reduced_s=8.0, buckets=(Bucket(1.0, 0.5), Bucket(1.0, 0.5)), reduces_after=True)
    assert hidden_reducing_s(8.0, late, phases) == pytest.approx(8.0 - 16.0)
    early = Passes(1.0, 2.0, LAYERS, 0.0, reducing_issued_s=12.0, ahead_s=100.0)
    assert hidden_reducing_s(8.0, early, phases) == pytest.approx(0.0)


def test_an_interval_holds_eight_of_ten_and_assumptions_make_it_wider_on_their_own_side() -> None:
    found = expected((6.0, 3.0, 1.0), 0.1, {"one": 0.2, "other": Sides(below=0.2, above=0.4)})
    below, above = math.sqrt(0.01 + 0.04 + 0.04), math.sqrt(0.01 + 0.04 + 0.16)
    assert pytest.approx(1.2816) == TENTH
    assert found.step_s == 10.0
    assert found.low_s == pytest.approx(10 / math.exp(1.2816 * below))
    assert found.high_s == pytest.approx(10 * math.exp(1.2816 * above))
    assert found.assumptions == ("one", "other")
    plain = expected((6.0, 3.0, 1.0), 0.0, {})
    assert (plain.low_s, plain.step_s, plain.high_s) == (10.0, 10.0, 10.0)


def test_bubbles_are_a_part_of_a_step_where_there_are_any() -> None:
    names = ["compute", "exposed communication", "optimizer step and host overhead"]
    without, with_bubbles = expected((6.0, 3.0, 1.0), 0.0, {}), expected((6.0, 3.0, 1.0, 2.0), 0.0, {})
    assert dict(without.parts) == dict(zip(names, (6.0, 3.0, 1.0), strict=True))
    assert list(with_bubbles.parts) == [*names[:2], "bubbles", names[2]]
    assert (with_bubbles.parts["bubbles"], with_bubbles.step_s) == (2.0, 12.0)
