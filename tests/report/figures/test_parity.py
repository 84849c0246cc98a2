"""Losses held against a reference."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.report.sample_run import SampleTrial, completed_trial, failed_trial, model, sample_trials, spec
from tests.tools.known import known
from zerobench.config.trial.trial import Precision
from zerobench.records.records import Failure
from zerobench.records.trials import losses_alone
from zerobench.report.figures.parity import TOLERANCES, ParityJudge, largest_difference

SINGLE = completed_trial(spec("single", gpus_per_node=1, gradient_accumulation_steps=2))


def two_ranks(strategy: str, losses: list[float], **fields: Any) -> SampleTrial:
    """A trial on two ranks with these losses."""
    return completed_trial(spec(strategy, gpus_per_node=2, **fields)).with_ranks(losses=losses)


def test_the_single_process_is_the_reference_of_all() -> None:
    trials = sample_trials()
    judge = ParityJudge(trials)
    verdicts = {trial.spec.trial_id: judge.judge(trial) for trial in trials}
    single = trials[0].spec.trial_id
    assert verdicts.pop(single) is None
    judged = [verdict for verdict in verdicts.values() if verdict is not None]
    assert len(judged) == 8
    assert {verdict.reference for verdict in judged} == {single}
    assert [verdict.agrees for verdict in judged] == [True, True, False, True, True, True, True, True]


def test_without_a_single_process_the_lowest_stage_is_the_reference() -> None:
    zero3, zero1, zero2 = (two_ranks(f"zero{stage}", [1.0]) for stage in (3, 1, 2))
    judge = ParityJudge([zero3, zero1, zero2])
    assert judge.reference(zero3) is zero1
    assert judge.judge(zero1) is None


def test_trials_of_other_work_are_not_compared() -> None:
    one, other = two_ranks("zero1", [1.0]), two_ranks("zero1", [2.0], micro_batch_size=4)
    assert ParityJudge([one, other]).judge(other) is None


def test_a_trial_that_did_not_complete_is_no_reference_and_gets_no_verdict() -> None:
    failed = failed_trial(spec("single", gpus_per_node=2), Failure(message="died"))
    zero1, zero2 = two_ranks("zero1", [1.0]), two_ranks("zero2", [1.0])
    judge = ParityJudge([failed, zero1, zero2])
    assert judge.judge(failed) is None
    assert judge.reference(zero2) is zero1


def test_models_with_dropout_are_not_compared() -> None:
    dropping = model().model_copy(update={"hf_config": {**model().hf_config, "resid_pdrop": 0.1}})
    trials = [two_ranks(f"zero{stage}", [float(stage)], model=dropping) for stage in (1, 2)]
    assert ParityJudge(trials).judge(trials[1]) is None


def test_a_rank_that_ran_alone_of_many_has_no_loss_to_compare() -> None:
    measured, solo = two_ranks("zero1", [1.0]), two_ranks("zero1", [9.0], evidence="solo")
    assert ParityJudge([measured, solo]).judge(solo) is None


@pytest.mark.parametrize(("precision", "below", "above"), [("fp32", 4.9e-6, 5.1e-6), ("bf16", 0.019, 0.021)])
def test_losses_may_differ_by_the_tolerance_of_their_precision(precision: str, below: float, above: float) -> None:
    zero0 = two_ranks("zero0", [1.0, 0.9], precision=precision)
    zero1, zero2 = (
        two_ranks(name, [1.0, 0.9 + error], precision=precision) for name, error in [("zero1", below), ("zero2", above)]
    )
    judge = ParityJudge([zero0, zero1, zero2])
    verdicts = [judge.judge(trial) for trial in (zero1, zero2)]
    assert [verdict is not None and verdict.agrees for verdict in verdicts] == [True, False]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_agrees_with_nothing(broken: float) -> None:
    for ours, theirs in [([1.0, broken], [1.0, 0.9]), ([1.0, 0.9], [1.0, broken]), ([broken], [broken])]:
        assert largest_difference(ours, theirs) == math.inf


def test_only_steps_that_both_took_are_compared() -> None:
    assert largest_difference([1.0, 5.0], [1.25]) == 0.25
    assert largest_difference([], [1.0]) is None


def test_every_precision_has_a_tolerance() -> None:
    assert set(TOLERANCES) == set(Precision)


def test_a_trial_stripped_to_its_losses_is_judged_the_same() -> None:
    trials = sample_trials()
    whole, stripped = ParityJudge(trials), ParityJudge([losses_alone(trial) for trial in trials])
    assert [whole.judge(trial) for trial in trials] == [stripped.judge(losses_alone(trial)) for trial in trials]


def test_compressed_gradients_have_a_distance_and_no_verdict() -> None:
    single = SINGLE.with_ranks(losses=[1.0, 0.9])
    compressed = two_ranks("ddp", [1.0, 0.5], compression="onebit")
    verdict = known(ParityJudge([compressed, single]).judge(compressed))
    assert verdict.difference == pytest.approx(0.4)
    assert (verdict.is_judged, verdict.agrees) == (False, True)


def test_compressed_gradients_are_no_reference_where_an_exact_strategy_is_there() -> None:
    compressed, zero3 = two_ranks("ddp", [1.0], compression="fp16"), two_ranks("zero3", [1.0])
    assert ParityJudge([compressed, zero3]).reference(compressed) is zero3


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_torchs_exact_strategies_are_judged_as_zero_is(strategy: str) -> None:
    single = SINGLE.with_ranks(losses=[1.0])
    verdicts = [
        ParityJudge([single, one]).judge(one) for one in (two_ranks(strategy, [1.0]), two_ranks(strategy, [1.5]))
    ]
    assert [verdict.agrees for verdict in verdicts if verdict is not None] == [True, False]


def with_norms(trial: SampleTrial, norms: Sequence[float]) -> SampleTrial:
    """The trial with norms of gradients on its first rank alone, as a server's or a driver's."""
    return trial.with_ranks(grad_norms=lambda rank: list(norms) if rank.rank == 0 else [])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_gradients_twice_too_large_or_small_are_marked_though_losses_agree(precision: str, factor: float) -> None:
    right, wrong = (
        with_norms(two_ranks(name, [1.0, 0.9], precision=precision), norms)
        for name, norms in (("zero0", [3.0, 2.0]), ("zero1", [3.0, 2.0 * factor]))
    )
    verdict = known(ParityJudge([right, wrong]).judge(wrong))
    assert verdict.difference == 0.0
    assert verdict.norm_difference == pytest.approx(1.0)
    assert (verdict.losses_agree, verdict.norms_agree, verdict.agrees) == (True, False, False)
    assert verdict.disagreeing == "gradient norms"


@pytest.mark.parametrize(("precision", "below", "above"), [("fp32", 0.049, 0.051), ("bf16", 0.09, 0.11)])
def test_norms_may_differ_by_the_tolerance_of_their_precision(precision: str, below: float, above: float) -> None:
    zero0, zero1, zero2 = (
        with_norms(two_ranks(name, [1.0], precision=precision), [2.0 * (1 + error)])
        for name, error in [("zero0", 0.0), ("zero1", below), ("zero2", above)]
    )
    judge = ParityJudge([zero0, zero1, zero2])
    verdicts = [judge.judge(trial) for trial in (zero1, zero2)]
    assert [verdict is not None and verdict.agrees for verdict in verdicts] == [True, False]


def test_a_trial_of_which_no_norm_is_known_is_judged_by_its_losses() -> None:
    said, old = (with_norms(two_ranks(f"zero{stage}", [1.0]), norms) for stage, norms in ((1, [3.0]), (2, [])))
    verdict = known(ParityJudge([said, old]).judge(old))
    assert (verdict.norm_difference, verdict.agrees) == (None, True)


def test_compressed_gradients_have_a_distance_of_their_norms_and_no_verdict() -> None:
    compressed = with_norms(two_ranks("ddp", [1.0], compression="onebit"), [6.0])
    verdict = known(ParityJudge([compressed, with_norms(SINGLE, [3.0])]).judge(compressed))
    assert (verdict.norm_difference, verdict.norms_agree, verdict.agrees) == (1.0, True, True)


def test_an_optimizer_that_drifts_by_design_has_no_verdict_on_losses_and_one_on_the_scale_of_its_gradients() -> None:
    single = completed_trial(spec("single", gpus_per_node=1, gradient_accumulation_steps=2, optimizer="adamw_8bit"))
    parts = with_norms(two_ranks("zero2", [1.0], optimizer="adamw_8bit"), [3.5])
    doubled = with_norms(two_ranks("zero1", [1.0], optimizer="adamw_8bit"), [6.0])
    judge = ParityJudge([with_norms(single, [3.0]).with_ranks(losses=[1.5]), parts, doubled])
    verdicts = [judge.judge(trial) for trial in (parts, doubled)]
    assert [v and (v.losses_agree, v.disagreeing) for v in verdicts] == [(True, ""), (True, "gradient norms")]


UNSTABLE = [15.6, 13.7, 4.2, 8.1, 82.4, 12.6]


def test_losses_are_judged_until_training_turns_unstable_and_amplifies_rounding() -> None:
    """As a Llama of 1B on an H100 did: at the fifth step rounding had become a difference of 1.5."""
    right, drifted, wrong = (
        with_norms(two_ranks(name, values, precision="bf16"), UNSTABLE)
        for name, values in (
            ("zero0", [12.2, 10.7, 9.57, 8.09, 7.14, 6.4]),
            ("zero1", [12.2, 10.7, 9.57, 8.10, 5.67, 9.0]),
            ("zero2", [12.2, 10.7, 9.60, 8.10, 5.67, 9.0]),
        )
    )
    judge = ParityJudge([right, drifted, wrong])
    kept, told = known(judge.judge(drifted)), known(judge.judge(wrong))
    assert (kept.agrees, kept.num_steps, kept.is_cut) == (True, 4, True)
    assert not told.agrees


def test_gradients_twice_too_large_are_marked_though_training_turned_unstable_later() -> None:
    right, wrong = (
        with_norms(two_ranks(name, [12.2, 10.7, 9.6, 8.1, 7.1, 6.4], precision="bf16"), [n * factor for n in UNSTABLE])
        for name, factor in (("zero0", 1.0), ("zero1", 2.0))
    )
    verdict = known(ParityJudge([right, wrong]).judge(wrong))
    assert verdict.disagreeing == "gradient norms"
