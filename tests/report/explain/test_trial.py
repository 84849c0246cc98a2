"""Why one trial took what it took: the arithmetic is held against ledgers of real runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.documents.run import cluster, plan_trials
from tests.report.explain.runs import BUCKETS, LARGE_2, LARGE_3, OFFLOADED, QUICKSTART, SMALL_3, data, named, text
from tests.report.predicted_trial import asked, trial
from tests.report.sample_run import GIB, MIB, RUN_ID, SampleTrial, completed_trial, sample_trials, spec, write_run
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.app.search.closed_forms import ClosedForms
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import OwnScript, TrialSpec
from zerobench.estimate.memory.record import formula_record
from zerobench.records.instants import Instant, largest_peak
from zerobench.records.store import load_run
from zerobench.report.explain.category import Explainer, Explanation
from zerobench.report.explain.find import NamedTrial, find_trial, named_trials
from zerobench.report.explain.memory import categories_topic
from zerobench.report.explain.savings import Savings, savings
from zerobench.report.explain.topic import Line, Topic, as_text
from zerobench.report.explain.trial import explain


def peak(path: Path, name: str) -> Instant:
    return known(largest_peak(named(path, name).trial, StepKind.STEADY, Place.DEVICE))


def not_explained(path: Path, name: str) -> dict[str, int]:
    found: Any = data(path, name)["categories"]
    return {one["category"]: one["not_explained_bytes"] for one in found}


@pytest.mark.parametrize("name", ["zero2", "zero3", "zero3 defaults"])
def test_closed_forms_explain_a_measured_peak_but_for_two_thousandths(name: str) -> None:
    missed = sum(abs(size) for size in not_explained(QUICKSTART, name).values())
    assert missed <= 0.002 * peak(QUICKSTART, name).total_bytes


@pytest.mark.parametrize("name", [LARGE_2, LARGE_3, SMALL_3, OFFLOADED])
def test_model_states_and_buffers_of_a_simulated_peak_are_explained_to_a_thousandth(name: str) -> None:
    states = {"parameters", "gradients", "master_weights", "first_moment", "second_moment"}
    explained = states | {"reduce_buffers", "gathered_parameters", "activations"}
    held = {category.value: size for category, size in peak(BUCKETS, name).categories.items()}
    left = not_explained(BUCKETS, name)
    for category in at_least_one(left.keys() & explained):
        assert abs(left[category]) <= max(0.001 * held[category], 16), category


def test_arithmetic_is_shown_with_what_was_seen_beside_it() -> None:
    said = text(QUICKSTART, "zero3 defaults")
    assert "reduce buffers: 953.67 MiB, 75.2% 1,000,000,000 B = reduce_bucket_size 5e8 x 2 bytes" in said
    assert "recorded 1,000,000,000 B: exact" in said
    assert "master weights, first moment, second moment: 3 x 40.26 MiB, 9.5%" in said
    assert "42,218,496 B = 4 bytes x 21,109,248 parameters / 2 ranks" in said
    assert "Not itemized: 2.01 MiB, 0.16% of the peak" in said


def test_a_prediction_is_explained_with_the_releases_that_it_is_of(tmp_path: Path) -> None:
    found = trial(asked("zero2"), {(StepKind.STEADY, Phase.BACKWARD): {Category.LOGITS_AND_LOSS: 9 * MIB}})
    acted = {"torch": "2.13.0", "deepspeed": "0.19.8", "transformers": "5.23.0"}
    found = replace(found, ranks=[rank.model_copy(update={"versions": acted}) for rank in found.ranks])
    write_run(tmp_path, [found])
    said = text(tmp_path, found.spec.trial_id)
    assert "predicted with: DeepSpeed 0.19.8, torch 2.13.0, transformers 5.23.0; other releases may differ" in said
    assert "transformers 4.x needs up to 196.32 MiB more for logits" in said
    known_of: Any = data(tmp_path, found.spec.trial_id)["trial"]
    assert known_of["versions"] == acted


def test_bytes_that_no_term_gives_are_said_and_not_hidden() -> None:
    seen = peak(QUICKSTART, "zero3")
    more = {**seen.categories, Category.PARAMETERS: seen.categories[Category.PARAMETERS] + 5 * MIB}
    swollen = replace(seen, categories=more, total_bytes=seen.total_bytes + 5 * MIB)
    explainer = Explainer(named(QUICKSTART, "zero3").trial, seen.rank)
    lines = [line.text for line in categories_topic(explainer, swollen).lines]
    assert any(f"unexplained: {5 * MIB:,} B" in line for line in lines)
    assert lines[-1].startswith("Not itemized: 5.")


def by_formula(strategy: str, **axes: Any) -> SampleTrial:
    wanted = asked(strategy, evidence="formula", **axes)
    return SampleTrial(wanted, completed_trial(wanted).record, [formula_record(wanted)])


def test_the_formulas_own_record_is_explained_by_the_same_arithmetic() -> None:
    """What the closed forms predict for another size: states to the byte."""
    for strategy in ("zero0", "zero1", "zero2", "zero3"):
        made = by_formula(strategy, micro_batch_size=2)
        seen = known(largest_peak(made, StepKind.STEADY, Place.DEVICE))
        for one in Explainer(made, 0).instant(seen):
            if one.category in {Category.PARAMETERS, Category.MASTER_WEIGHTS, Category.FIRST_MOMENT}:
                assert one.not_explained_bytes == 0, (strategy, one)


def test_logits_of_a_chunk_are_explained_as_such() -> None:
    made = by_formula("zero2", micro_batch_size=16, cross_entropy="chunked")
    forward = Phase.FORWARD
    rows = {row.category: row.at_peak_bytes or 0 for row in made.ranks[0].memory if row.phase is forward}
    total = rows.pop(Category.TOTAL)
    seen = Instant(0, StepKind.STEADY, forward, total, rows)
    [logits] = [one for one in Explainer(made, 0).instant(seen) if one.category is Category.LOGITS_AND_LOSS]
    assert logits.not_explained_bytes == 0
    assert "of a chunk" in str(logits)


def known_savings(seen: Instant, others: Sequence[NamedTrial] = ()) -> Savings:
    """Of the trial with the large bucket at stage 3."""
    return savings(named(BUCKETS, LARGE_3).trial, seen, others, ClosedForms())


def test_the_estimated_saving_of_a_smaller_bucket_is_what_the_trial_with_that_bucket_saved() -> None:
    found = known_savings(peak(BUCKETS, LARGE_3))
    [bucket] = [one for one in found.known if one.setting == "reduce_bucket_size: 5e7"]
    saved = peak(BUCKETS, LARGE_3).total_bytes - peak(BUCKETS, SMALL_3).total_bytes
    assert -bucket.more_bytes == pytest.approx(saved, rel=0.001)
    assert bucket.recorded_by is None


def test_a_saving_that_another_trial_of_the_run_recorded_is_that_trials() -> None:
    found = known_savings(peak(BUCKETS, LARGE_3), named_trials(load_run(BUCKETS)))
    [bucket] = [one for one in found.known if one.setting == "reduce_bucket_size: 5e7"]
    assert bucket.more_bytes == peak(BUCKETS, SMALL_3).total_bytes - peak(BUCKETS, LARGE_3).total_bytes
    assert f"reduce_bucket_size: 5e7: -858.31 MiB (recorded by {SMALL_3})" in text(BUCKETS, LARGE_3)


def test_without_closed_forms_the_other_settings_are_offered_as_not_tried() -> None:
    said = " ".join(as_text(explain(load_run(BUCKETS), LARGE_3)).split())
    assert f"(recorded by {SMALL_3})" in said
    assert "Not tried: " in said
    assert "reduce_bucket_size" not in said.partition("Not tried: ")[2].partition(".")[0]


def test_the_effect_of_a_setting_is_found_without_playing_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("zerobench.estimate.memory.record.allocator_rows")
    assert known_savings(peak(BUCKETS, LARGE_3)).known


def test_the_closed_forms_give_no_savings_where_they_miss_the_peak() -> None:
    seen = peak(BUCKETS, LARGE_3)
    found = known_savings(replace(seen, total_bytes=2 * seen.total_bytes))
    assert found.known == []
    assert known(found.estimate).error < -0.4


def explained(wanted: TrialSpec, ledger: dict[Category, int]) -> dict[Category, Explanation]:
    """What is said of each category of a peak in the backward pass of a trial with eight million parameters."""
    made = replace(trial(asked("zero3"), num_params=8 * 10**6), spec=wanted)
    seen = Instant(0, StepKind.STEADY, Phase.BACKWARD, sum(ledger.values()), ledger)
    assert savings(made, seen, (), ClosedForms()).estimate is None
    return {one.category: one for one in Explainer(made, 0).instant(seen)}


def test_a_model_without_closed_forms_is_explained_by_its_number_of_parameters() -> None:
    unknown = ModelSpec(name="odd", hf_config={**asked().model.hf_config, "model_type": "never_heard_of"})
    wanted = asked("zero3").model_copy(update={"model": unknown})
    ledger = {Category.PARAMETERS: 2 * 10**6, Category.REDUCE_BUFFERS: 10**9, Category.ACTIVATIONS: 77}
    by_category = explained(wanted, ledger)
    assert by_category[Category.PARAMETERS].terms[0].words == "2 bytes x 8,000,000 parameters / 8 ranks"
    assert by_category[Category.REDUCE_BUFFERS].not_explained_bytes == 0
    assert by_category[Category.ACTIVATIONS].terms == ()


def test_of_a_users_own_script_nothing_is_said_that_it_did_not_tell() -> None:
    own = OwnScript(name="mine", unknown=("sequence_length", "micro_batch_size"))
    wanted = asked("zero3").model_copy(update={"own": own})
    by_category = explained(wanted, {Category.PARAMETERS: 2 * 10**6, Category.ACTIVATIONS: GIB})
    assert by_category[Category.PARAMETERS].not_explained_bytes == 0
    assert by_category[Category.ACTIVATIONS].terms == ()
    assert by_category[Category.ACTIVATIONS].depends_on is None


def test_offloaded_states_are_explained_where_they_lie() -> None:
    said = text(BUCKETS, OFFLOADED)
    assert "Host memory at the peak, rank 0" in said
    assert "88,705,792 B = the updated partition on its way to the device: 2 bytes x 354,823,168 parameters / 8" in said
    assert "recorded 191,632,128 B: exact" in said


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample run, with its failures."""
    folder = tmp_path_factory.mktemp("sample") / RUN_ID
    write_run(folder, sample_trials(), samples=False)
    return folder


def test_the_odd_rank_and_what_nvml_saw_are_told(sample: Path) -> None:
    said = text(sample, "zero1")
    assert "in backward of a steady step, on rank 3 of 8. Over 8 ranks it is 10.77 GiB to 10.81 GiB: no rank" in said
    assert "514.00 MiB CUDA context, 320.00 MiB NCCL" in said


def test_a_rank_that_is_off_the_median_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / RUN_ID, [completed_trial(spec("zero3", micro_batch_size=1))], samples=False)
    assert "rank 3 is the outlier, +2." in text(tmp_path / RUN_ID, "zero3")


def test_a_trial_that_ran_out_of_memory_says_what_it_asked_for_and_what_was_free(sample: Path) -> None:
    said = text(sample, "zero0 mb64")
    assert "ended as out of device memory, in backward of step 1, on rank 2: the device ran out of memory." in said
    assert "Requested: 12.00 GiB, 3.00 GiB free. At least 9.00 GiB were missing." in said
    assert "By closed forms its tensors need 125." in said


def test_a_hang_says_where_its_ranks_were(sample: Path) -> None:
    said = text(sample, "zero3 ckpt")
    assert "ended as timeout, in forward of step 2: no rank finished within 900 s." in said
    assert "Rank 0 was at: all_gather" in said


def test_a_skipped_trial_says_its_rule(sample: Path) -> None:
    assert "The trial was skipped by the rule offload_param_needs_stage_3: offload_param: DeepSpeed" in text(
        sample, "zero2 param=cpu"
    )


def test_a_failed_trial_beside_one_that_ran_is_told_by_its_ending(sample: Path) -> None:
    said = text(sample, "zero0", "zero0 mb64")
    assert "micro_batch_size: 8 -> 64" in said
    assert "Requested: 12.00 GiB" in said
    assert "The steady peak of device memory is" in said


def test_every_trial_of_the_sample_can_be_explained_alone_and_beside_the_first(sample: Path) -> None:
    run = load_run(sample)
    for one in at_least_one(named_trials(run)):
        assert explain(run, one.trial.trial_id)
        assert explain(run, "zero0", (run, one.trial.trial_id))


def test_a_trial_is_found_by_id_by_the_start_of_it_by_label_and_by_words_of_it() -> None:
    known = named_trials(load_run(BUCKETS))
    wanted = next(one for one in known if one.label == LARGE_3)
    identity = wanted.trial.trial_id
    for name in (identity, identity[:-6], LARGE_3, "  zero3   reduce_bucket=5e8 ", "reduce_bucket=5e8 zero3"):
        assert find_trial(name, known) is wanted


@pytest.mark.parametrize("name", ["zero3 mb2", "mb2 zero3", "zero3 opt=cpu mb2"])
def test_a_name_may_say_what_all_trials_share_and_leave_out_what_a_trial_does_not_do(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "run", [trial for trial in plan_trials(cluster(), micro_batch_size=2) if trial.ranks])
    found = find_trial(name, named_trials(load_run(tmp_path / "run")))
    assert found.label.replace(" fused_adamw", "").replace(" cpu_adam", "") == " ".join(
        word for word in ("zero3", "opt=cpu") if word in name
    )


def test_a_name_of_several_trials_is_refused_with_those() -> None:
    with pytest.raises(UserError) as caught:
        find_trial("zero2", named_trials(load_run(BUCKETS)))
    assert str(caught.value).startswith("TRIAL: 'zero2' matches several trials; choices: 'zero2 reduce_bucket=5e7', ")
    assert "zero3" not in str(caught.value)


def test_a_name_of_no_trial_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'zero3 defaults'"):
        find_trial("zero3 defualts", named_trials(load_run(QUICKSTART)))


def test_a_label_that_starts_others_means_the_trial_that_has_it_whole() -> None:
    assert find_trial("zero3", named_trials(load_run(QUICKSTART))).label == "zero3"


def test_text_keeps_to_its_columns_and_steers_no_terminal() -> None:
    topic = Topic("a\x1b[31m title", [Line("word " * 40 + "\x1b]0;x\x07[bold]", 1)])
    shown = as_text([topic], 60)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]" in shown
    assert max(map(len, shown.splitlines())) <= 60


def test_a_peak_without_categories_is_told_by_its_total_alone() -> None:
    blind = trial(asked("zero2"), {(StepKind.STEADY, Phase.BACKWARD): {}})
    seen = Instant(0, StepKind.STEADY, Phase.BACKWARD, GIB, {})
    [line] = categories_topic(Explainer(blind, 0), seen).lines
    assert line.text == "Total only: categories unknown at this point."


def test_what_predictions_said_stands_beside_a_trial_that_ran_out(tmp_path: Path) -> None:
    failed = next(one for one in sample_trials() if one.record.failure and one.record.failure.bytes_asked)
    predicted = failed.spec.model_copy(update={"evidence": asked().evidence, "prediction": asked().prediction})
    write_run(tmp_path / RUN_ID, [failed, completed_trial(predicted), completed_trial(spec("zero1"))])
    assert "The simulated trial of the same work needs " in text(tmp_path / RUN_ID, failed.spec.trial_id)


def test_an_explanation_opens_with_the_answer_and_the_settings_that_change_it() -> None:
    run = load_run(QUICKSTART)
    assert explain(run, "zero3")[0].title == "Answer"
    assert explain(run, "zero3")[0].lines[0].text.startswith("zero3 peaks at ")
    told = explain(run, "zero2", (run, "zero3"), estimates=ClosedForms())
    answer, *settings = [line.text for line in told[0].lines]
    assert answer == (
        "zero2 peaks 37.20 MiB higher than zero3 in device memory: temporaries +80.53 MiB, gradients +20.13 MiB, "
        "parameters +20.13 MiB."
    )
    assert settings == [
        "To shrink parameters: stage 3 or offload_param: cpu at stage 3.",
        "Largest saving of one setting: offload_optimizer: cpu, -158.14 MiB at this peak.",
    ]


def test_a_name_of_a_plans_table_and_a_marked_one_are_taken(tmp_path: Path) -> None:
    fields: list[dict[str, Any]] = [{"optimizer": "sgd"}, {"optimizer": "sgd", "offload_optimizer": "cpu"}, {}]
    trials = [completed_trial(spec("zero1" if one else "zero2", **one)) for one in fields]
    write_run(tmp_path / RUN_ID, trials, samples=False)
    known = named_trials(load_run(tmp_path / RUN_ID))
    assert known[0].label != "zero1"
    assert find_trial("! zero1", known) is known[0]


def test_a_name_as_tables_of_several_runs_have_it_is_found() -> None:
    known = named_trials(load_run(QUICKSTART))
    assert find_trial("zero2 @ A", known) is find_trial("zero2", known)
