"""The learning rate warms up linearly and decays by a cosine to a tenth of its peak."""

import pytest

from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import HyperparameterSpec, TrialSpec
from zerobench.rank.training.schedule import learning_rate, planned_rate

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


def test_warm_up_and_decay_are_counted_in_tokens_where_the_batch_grows():
    ramp = {"start_tokens": 64, "over_tokens": 512}
    fields = {"strategy": "ddp", "gpus_per_node": 2, "gradient_accumulation_steps": 4, "sequence_length": 32}
    fields |= {"model": resolve_model("llama-10m"), "steps": {"warmup": 1, "timed": 6}}
    fields |= {"hyperparameters": {"learning_rate": 1.0, "warmup_steps": 1, "decay_steps": 5}}
    trial = TrialSpec.model_validate(fields | {"batch_ramp": ramp})
    rates = {step.seen_tokens / 256: planned_rate(trial, step) for step in plan_steps(trial)}
    assert [rates[seen] for seen in (0, 0.25, 0.5, 0.75)] == [0.25, 0.5, 0.75, 1.0]  # of a full batch: all of warm-up
    later = {seen: rate for seen, rate in rates.items() if seen >= 1}
    assert len(later) >= 5
    assert later == {seen: learning_rate(seen, trial.hyperparameters) for seen in later}
    assert sorted(later.values(), reverse=True) == list(later.values())
