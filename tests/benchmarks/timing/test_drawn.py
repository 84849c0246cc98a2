"""Drawn configurations are those of their seed, and what is said of them is what closed form and replay say."""

import random
from itertools import islice

import pytest

from benchmarks.timing.drawn import draw, timed
from tests.tools.kept_simulator import Simulate
from zerobench.config.trial.trial import Offload


def test_a_seed_draws_the_same_configurations_and_another_seed_others() -> None:
    first, again, other = (
        [drawn.spec.trial_id for drawn in islice(draw(random.Random(seed)), 20)]  # noqa: S311 -- no secret
        for seed in (1, 1, 2)
    )
    assert first == again
    assert len(set(first)) == 20
    assert not set(first) & set(other)


def test_all_that_the_closed_form_has_branches_for_is_drawn() -> None:
    specs = [drawn.spec for drawn in islice(draw(random.Random(5)), 300)]  # noqa: S311
    assert {spec.strategy for spec in specs} == {"ddp", "fsdp", "tensor", "pipeline", *(f"zero{n}" for n in range(4))}
    assert {spec.offload_param for spec in specs} == {Offload.NONE, Offload.CPU}
    assert {spec.cross_entropy.value for spec in specs} == {"full", "chunked", "model_dtype"}
    assert {spec.activation_checkpointing for spec in specs} >= {True, False, "every-2", "ops"}
    assert {spec.world_size for spec in specs} >= {1, 2, 8, 64}


def test_both_times_are_told_at_a_usual_and_at_a_slow_host(simulate: Simulate) -> None:
    drawing = draw(random.Random(1))  # noqa: S311
    drawn = next(
        each for each in drawing if each.spec.strategy == "zero3" and each.spec.model.name.startswith("gpt2-2x")
    )
    usual, slow = timed(drawn, *simulate([drawn.spec]))
    assert (usual.host, slow.host) == ("usual", "slow")
    assert slow.replayed_s > usual.replayed_s
    assert usual.error == pytest.approx(usual.closed_s / usual.replayed_s - 1)
    assert max(abs(usual.error), abs(slow.error)) < 0.1
