"""A batch that grows in tokens: which sizes it has and when, what a sweep may write, and what is refused."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.machines import CPU
from tests.config.rules.refusals import each_refused
from tests.tools.known import known
from tests.tools.refusals import one_line
from zerobench.config.axes.axes import read_axis
from zerobench.config.derived.step_plan import plan_steps, step_kinds
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import Skip, find_skip
from zerobench.config.rules.situation import Situation
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.batch_ramp import BatchRamp
from zerobench.config.trial.trial import StepsSpec, TrialSpec

KEPT_HASHES = ("108daddb80a7", "8cff23dea77a")
"""Of `trial(batch_ramp=None)`, before there were ramps."""
STEPS = {"warmup": 1, "memory": 1, "timed": 4}


def trial(start: int = 64, over: int = 512, increment: int | None = None, **fields: Any) -> TrialSpec:
    """Two ranks that take three micro-batches of 32 tokens each once the batch is full: 192 tokens."""
    ramp = {"start_tokens": start, "over_tokens": over, "increment_tokens": increment}
    work = {"strategy": "ddp", "gpus_per_node": 2, "gradient_accumulation_steps": 3, "sequence_length": 32}
    work |= {"model": resolve_model("llama-10m"), "precision": "fp32", "steps": STEPS, "batch_ramp": ramp}
    return TrialSpec.model_validate(work | fields)


def skip(spec: TrialSpec) -> Skip | None:
    return find_skip(Situation(spec, CPU, 10_000_000))


def test_gpt_3s_batch_grows_from_32_thousand_to_3_million_tokens_over_the_first_billions() -> None:
    ramp = BatchRamp(start_tokens=32_000, over_tokens=4 * 10**9)
    full = 3_200_000
    assert ramp.tokens_at(0, full) == 32_000
    assert ramp.tokens_at(2 * 10**9, full) == pytest.approx((32_000 + full) / 2, rel=0.02)
    assert ramp.tokens_at(4 * 10**9 - 1, full) == full - 32_000
    assert ramp.tokens_at(4 * 10**9, full) == ramp.tokens_at(10**12, full) == full


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 10**6), st.lists(st.integers(0, 2 * 10**6), min_size=2))
def test_a_batch_never_shrinks_and_grows_in_whole_increments(start: int, more: int, over: int, seen: list[int]) -> None:
    ramp, full = BatchRamp(start_tokens=8 * start, increment_tokens=8, over_tokens=over), 8 * (start + more)
    sizes = [ramp.tokens_at(tokens, full) for tokens in sorted(seen)]
    assert sizes == sorted(sizes)
    assert all(8 * start <= size <= full and size % 8 == 0 for size in sizes)


def test_each_size_is_seen_by_the_ledger_before_it_is_timed() -> None:
    steps = plan_steps(trial())
    assert [(step.kind, step.tokens) for step in steps] == [
        ("first", 64),
        ("warmup", 64),
        ("memory", 64),
        ("warmup", 64),
        ("memory", 128),
        ("timed", 128),
        *[("memory", 192), ("timed", 192), ("timed", 192), ("timed", 192)],
    ]
    assert [step.seen_tokens for step in steps] == [sum(one.tokens for one in steps[:i]) for i in range(len(steps))]


def test_a_fixed_batch_has_the_steps_that_were_asked_for_all_of_one_size() -> None:
    spec = trial(batch_ramp=None)
    steps = plan_steps(spec)
    assert [step.kind for step in steps] == step_kinds(StepsSpec(**STEPS))
    assert len(steps) == spec.steps.total
    assert {step.tokens for step in steps} == {192}


def test_a_single_process_takes_the_steps_of_all_ranks() -> None:
    alone = trial(strategy="single", gpus_per_node=1, gradient_accumulation_steps=6)
    assert plan_steps(alone) == plan_steps(trial())


test_a_ramp_that_cannot_be_run_or_seen_to_its_end_is_refused_with_the_remedy = each_refused(
    skip,
    (trial(start=192), "ramp_starts_above_batch", "the full batch has 192 (2 ranks x micro_batch_size 1"),
    (trial(start=32), "ramp_not_divisible", "start_tokens 32 is not a whole number of micro-batches"),
    (trial(increment=96), "ramp_not_divisible", "increment_tokens 96 is not a whole number"),
    (
        trial(increment=128, gradient_accumulation_steps=4),
        "ramp_not_divisible",
        "never reaches the 256 of the full",
    ),
    (trial(over=10**6), "ramp_outlasts_trial", "or over_tokens to"),
    (trial(evidence="formula"), "ramp_has_no_formula", "use simulated"),
)


def test_both_remedies_for_a_ramp_that_outlasts_the_trial_are_right() -> None:
    long = trial(over=2000)
    skipped = known(skip(long))
    timed, over = map(int, re.findall(r"to (\d+) or", skipped.reason))
    for steps, is_enough in ((timed, True), (timed - 1, False)):
        longer = long.model_copy(update={"steps": long.steps.model_copy(update={"timed": steps})})
        assert (skip(longer) is None) == is_enough
    assert skip(trial(over=over)) is None


def test_ranks_that_divide_the_model_take_any_number_of_micro_batches() -> None:
    assert skip(trial(start=32, strategy="tensor")) is None
    assert skip(trial(strategy="tensor")) is None


def test_a_strategy_whose_batch_is_fixed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    info = STRATEGIES["ddp"].model_copy(update={"fixed_batch": "its batch is set once"})
    monkeypatch.setitem(STRATEGIES, "ddp", info)
    skipped = known(skip(trial()))
    assert (skipped.rule, skipped.reason) == (
        "ramp_needs_variable_accumulation",
        "batch_ramp at ddp: its batch is set once",
    )


def test_a_ramp_makes_another_trial_with_another_reference_and_none_leaves_hashes_as_they_were() -> None:
    ramped, fixed = trial(), trial(batch_ramp=None)
    assert ramped.config_hash != fixed.config_hash
    assert ramped.parity_hash != fixed.parity_hash
    assert (fixed.config_hash, fixed.parity_hash) == KEPT_HASHES


@pytest.mark.parametrize("written", [None, "none"])
def test_an_axis_says_none_for_a_fixed_batch(written: object) -> None:
    assert read_axis("batch_ramp", written, "axes") == [None]


def test_an_axis_lists_ramps_beside_none() -> None:
    nothing, asked = read_axis("batch_ramp", ["none", {"start_tokens": "4096", "over_tokens": 1e6}], "axes")
    assert nothing is None
    assert asked.resolve(64, 8192) == BatchRamp(start_tokens=4096, over_tokens=1_000_000)


def test_a_ramp_may_be_written_for_any_batch_and_comes_to_tokens_at_each_point() -> None:
    [asked] = read_axis("batch_ramp", {"over_batches": 4}, "axes")
    assert asked.resolve(256, 1024) == BatchRamp(start_tokens=256, over_tokens=4096)


def test_the_shipped_sweep_has_each_size_for_the_single_process_and_all_ranks_alike() -> None:
    planned = expand(load_sweep("batch-ramp"), CPU)
    ramped = [one.trial for one in planned if one.trial.batch_ramp is not None]
    assert [one.skipped for one in planned] == [None] * 10
    assert {trial.strategy for trial in ramped} == {"single", "ddp", "zero1", "zero2", "zero3"}
    assert {trial.batch_ramp for trial in ramped} == {BatchRamp(start_tokens=256, over_tokens=4096)}
    assert len({trial.parity_hash for trial in ramped}) == 1
    sizes = [step.tokens for step in plan_steps(ramped[0]) if step.kind == "timed"]
    assert sorted(set(sizes)) == [256, 512, 768, 1024]


def test_filters_take_a_ramp_as_names_write_it() -> None:
    kept = expand(load_sweep("batch-ramp", only=["batch_ramp=256+*"]), CPU)
    assert len(kept) == 5
    assert all(one.trial.batch_ramp is not None for one in kept)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (5, "choices: none, or a mapping of start_tokens"),
        ({"start_tokens": 8}, "it takes one of over_tokens, over_batches"),
        ({"over_batches": 2, "over_tokens": 8}, "it takes one of"),
        ({"start_tokens": 0, "over_tokens": 8}, "start_tokens"),
        ({"start_tokens": True, "over_tokens": 8}, "start_tokens: true is not a number"),
        ({"start_tokens": True, "over_tokens": False}, "start_tokens: true is not a number"),
        ({"start_tokens": 8, "over_token": 8}, "did you mean 'over_tokens'"),
    ],
)
def test_what_is_no_ramp_is_refused_with_the_field(written: object, words: str) -> None:
    with one_line("axes: batch_ramp", words):
        read_axis("batch_ramp", written, "axes")
