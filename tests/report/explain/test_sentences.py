"""What a run comes to: held against runs of the sample's arithmetic, and real ones."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.documents.run import cluster, plan_trials
from tests.report.explain.runs import BUCKETS, QUICKSTART
from tests.report.predicted_trial import asked
from tests.report.sample_run import (
    RUN_ID,
    SampleTrial,
    completed_trial,
    failed_trial,
    on_cpu,
    refused_trial,
    sample_trials,
    skipped_trial,
    spec,
    write_run,
)
from tests.tools.known import known
from zerobench.common.units import format_count
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.records import Failure, HostSummary
from zerobench.records.store import load_run
from zerobench.report.documents.view import read_plan
from zerobench.report.explain.candidates import candidates
from zerobench.report.explain.choice import decide
from zerobench.report.explain.sentences import headline
from zerobench.report.export.run_frames import RunFrames, run_frames


def frames(folder: Path, trials: Sequence[SampleTrial]) -> RunFrames:
    write_run(folder / RUN_ID, trials, samples=False)
    return run_frames([load_run(folder / RUN_ID)])


def small(strategy: str, **fields: Any) -> TrialSpec:
    """A trial of two ranks, which is quicker to write and read."""
    return spec(strategy, **{"gpus_per_node": 2, **fields})


def told(folder: Path, *trials: SampleTrial) -> list[str]:
    return headline(frames(folder, trials))


def test_a_whole_run_is_told_in_six_sentences(tmp_path: Path) -> None:
    common = "most common reason: the device ran out of memory (1)"
    least = "zero3 opt=nvme param=cpu fits in 11.02 GiB of 79.53 GiB per device (in steps, start-up 11.02 GiB)"
    void = "not ranked, allocator retries: zero2 reduce_bucket=5e8"
    rival = "zero1, 284 K tokens/s (2% faster, uncertain), 12.3 GiB (78.6 MiB more)"
    once = "one repeat per trial: spread within a run, not between runs"
    assert told(tmp_path, *sample_trials()) == [
        f"{least}; zero0 mb64 (out of memory) does not fit (8 of 9 trials fit).",
        "Fastest: zero1, 284 K tokens/s (a tie within step-time spread: zero2).",
        f"Choose zero2: least device memory of 2 equally fast trials, 12.22 GiB in steps. Runner-up: {rival}.",
        "All figures are measured (11 trials).",
        f"9 of 12 trials completed; 1 out of device memory, 1 timeout, 1 skipped; {common}.",
        f"Excluded, losses differ from the reference: zero1 mb4 ga2; {void}; {once}.",
    ]


def test_a_trial_that_is_faster_beyond_the_spread_is_chosen_whatever_its_memory(tmp_path: Path) -> None:
    said = told(tmp_path, completed_trial(small("zero0"), step_s=0.1), completed_trial(small("zero2")))
    assert "Fastest: zero0, 162 K tokens/s, outside step-time spread." in said
    assert any(sentence.startswith("Choose zero0: fastest, ") for sentence in said)


@pytest.mark.parametrize("is_timed", [True, False])
def test_one_trial_alone_is_no_choice(tmp_path: Path, *, is_timed: bool) -> None:
    trial = completed_trial(small("zero2")) if is_timed else plan_trials(cluster(gpu="h200"))[0]
    assert not any(sentence.startswith("Choose") for sentence in told(tmp_path, trial))


def test_nothing_is_ranked_inside_the_spread(tmp_path: Path) -> None:
    said = told(tmp_path, *(completed_trial(small(f"zero{stage}"), step_s=0.2 + stage / 1e4) for stage in range(4)))
    assert any(sentence.startswith("4 trials equally fast within step-time spread") for sentence in said)
    assert any(sentence.startswith("Choose zero3: least device memory of 4 equally fast trials") for sentence in said)


@pytest.mark.parametrize(
    ("fault", "differing"), [({"loss_error": 0.5}, "losses differ"), ({"norm_factor": 2.0}, "gradient norms differ")]
)
def test_losses_or_gradients_that_disagree_are_no_choice_however_fast(
    tmp_path: Path, fault: dict[str, Any], differing: str
) -> None:
    wrong = completed_trial(small("zero2"), step_s=0.01, **fault)
    said = told(tmp_path, completed_trial(small("zero0")), completed_trial(small("zero1"), step_s=0.3), wrong)
    assert any("Fastest: zero0" in sentence for sentence in said)
    assert any(f"{differing} from the reference: zero2" in sentence for sentence in said)


def test_a_throughput_that_is_void_is_not_ranked(tmp_path: Path) -> None:
    said = told(tmp_path, completed_trial(small("zero0")), completed_trial(small("zero1"), step_s=0.1, alloc_retries=2))
    assert "zero0: 64.9 K tokens/s (no other trial to compare)." in said
    assert any("not ranked, allocator retries: zero1" in sentence.lower() for sentence in said)


def test_repeats_count_as_one_trial_and_lift_the_doubt_about_single_runs(tmp_path: Path) -> None:
    trials = [
        completed_trial(small(strategy, repeat=repeat), step_s=0.2 + repeat / 100)
        for strategy in ("zero1", "zero2")
        for repeat in range(3)
    ]
    found = frames(tmp_path, trials)
    assert [one.num_repeats for one in candidates(found)] == [3, 3]
    assert [len(one.rates) for one in candidates(found)] == [3, 3]
    assert not any("one repeat per trial" in sentence for sentence in headline(found))


def test_the_reference_is_not_ranked_among_the_strategies(tmp_path: Path) -> None:
    single = completed_trial(spec("single", gpus_per_node=1, gradient_accumulation_steps=2), step_s=0.01)
    said = told(tmp_path, single, completed_trial(small("zero0")), completed_trial(small("zero1"), step_s=0.5))
    assert any("Fastest: zero0" in sentence for sentence in said)


def test_on_one_rank_the_single_process_is_ranked_like_the_others(tmp_path: Path) -> None:
    """On an H100 it was the fastest, and zero1 had been called so."""
    alone = [completed_trial(spec(name, gpus_per_node=1), step_s=s) for name, s in (("single", 0.2), ("zero1", 0.4))]
    said = told(tmp_path, *alone)
    assert any("Fastest: single" in sentence for sentence in said)


def test_different_work_is_not_compared_by_its_tokens(tmp_path: Path) -> None:
    said = told(tmp_path, completed_trial(small("zero0")), completed_trial(small("zero0", gpus_per_node=1), step_s=9.0))
    assert any(
        "(no other trial on 2 ranks)" in sentence and "(no other trial on 1 rank)" in sentence for sentence in said
    )


@pytest.mark.parametrize("processor", ["cpu", "AMD EPYC"])
def test_a_cpu_run_has_no_device_limit(tmp_path: Path, processor: str) -> None:
    trials = [on_cpu(completed_trial(small(name))).with_ranks(device_name=processor) for name in ("zero1", "zero2")]
    said = told(tmp_path, *trials)
    assert (
        said[0] == "CPU run: no device limit; device memory 12.22 GiB in steps (zero2) to 12.26 GiB in steps (zero1)."
    )


def test_predictions_alone_say_that_nothing_was_measured_and_choose_what_the_plan_recommends(tmp_path: Path) -> None:
    place = cluster(gpu="h200")
    said = told(tmp_path, *plan_trials(place))
    assert any(sentence.startswith("All figures are predicted (") for sentence in said)
    assert not any("fastest" in sentence.lower().partition("choose")[0] for sentence in said)
    [choice] = [sentence for sentence in said if sentence.startswith("Choose ")]
    taken = known(decide(read_plan(tmp_path / RUN_ID, place)[1]))
    best = taken.best
    tokens_per_s = best.spec.world_size * best.spec.tokens_per_gpu / known(best.expected).step_s
    assert choice.startswith(f"Choose {best.label} ({format_count(tokens_per_s)} tokens/s expected): ")
    assert taken.reason in choice


@pytest.mark.parametrize("host_memory", ["1TB", "20GB", None])
@pytest.mark.parametrize(("gpu", "gpus"), [("h200", "8"), ("t4", "8"), ("rtx 4090", "1")])
def test_a_report_of_a_plan_recommends_what_the_plan_does(
    tmp_path: Path, gpu: str, gpus: str, host_memory: str | None
) -> None:
    """Also where only offloaded states fit, and the host's memory decides whether."""
    place = cluster(gpu=gpu, gpus=gpus, **({} if host_memory is None else {"host_memory": host_memory}))
    place = place if host_memory else replace(place, host_memory_bytes=None)
    said = told(tmp_path, *plan_trials(place))
    rows = read_plan(tmp_path / RUN_ID, place)[1]
    taken = decide(rows)
    choices = [sentence for sentence in said if sentence.startswith("Choose ")]
    if taken is None:
        assert not choices
    else:
        [choice], best = choices, taken.best
        told_by_the_report = choice.replace(" fused_adamw", "").replace(" cpu_adam", "")
        assert re.match(rf"Choose {re.escape(best.label)}(: | \([\d.]+ \w tokens/s expected\): )", told_by_the_report)


def test_a_report_of_a_plan_prefers_what_does_without_checkpointing_as_the_plan_does(tmp_path: Path) -> None:
    place = cluster(gpu="h200")
    again = [trial for trial in plan_trials(place, activation_checkpointing=True) if trial.spec.zero_stage == 1]
    once = [trial for trial in plan_trials(place) if trial.spec.zero_stage == 2]
    said = told(tmp_path, *again, *once)
    taken = known(decide(read_plan(tmp_path / RUN_ID, place)[1]))
    assert not taken.best.spec.activation_checkpointing
    [choice] = [sentence for sentence in said if sentence.startswith("Choose ")]
    assert choice.startswith(f"Choose {taken.best.label} (")


def test_what_is_too_large_for_its_device_is_named(tmp_path: Path) -> None:
    small = [asked("zero0", prediction={"gpu": "RTX 4090"}), asked("zero3", prediction={"gpu": "RTX 4090"})]
    large = [completed_trial(one.model_copy(update={"micro_batch_size": 64})) for one in small]
    said = told(tmp_path, *large)
    assert said[0] == "Nothing fits in 23.64 GiB per device: zero0 (86.21 GiB in steps), zero3 (81.86 GiB in steps)."
    assert not any(sentence.startswith("Choose") for sentence in said)


def test_what_was_refused_for_gaps_alone_is_no_choice_as_in_a_plan(tmp_path: Path) -> None:
    place = cluster(gpu="h200")
    trials = [trial for trial in plan_trials(place) if trial.ranks and trial.spec.strategy in {"zero1", "zero2"}]
    refused = [refused_trial(trial, 99) for trial in trials]
    found = candidates(frames(tmp_path, refused))
    assert [one.fits for one in found] == [False] * len(refused)
    assert [one.figures.has_room for one in found] == [False] * len(refused)


def test_the_same_work_in_two_runs_is_two_choices_and_its_figures_are_not_mixed(tmp_path: Path) -> None:
    for name, step_s in [("slow", 4.0), ("fast", 1.0)]:
        made = completed_trial(small("zero1"), step_s=step_s).with_record(run_id=name)
        write_run(tmp_path / name, [made], samples=False)
        plan = tmp_path / name / "plan.json"
        plan.write_text(plan.read_text().replace(RUN_ID, name))
    found = candidates(run_frames([load_run(tmp_path / "slow"), load_run(tmp_path / "fast")]))
    assert [one.label for one in found] == ["zero1 @ A", "zero1 @ B"]
    assert found[1].tokens_per_s == pytest.approx(4 * (found[0].tokens_per_s or 0))


def test_a_prediction_of_what_was_measured_counts_once(tmp_path: Path) -> None:
    measured = spec("zero1")
    predicted = measured.model_copy(update={"evidence": asked().evidence, "prediction": asked().prediction})
    found = frames(tmp_path, [completed_trial(measured), completed_trial(predicted)])
    assert [one.figures.spec.evidence for one in candidates(found)] == ["measured"]
    assert "1 trial measured; predicted: 1 simulated" in " ".join(headline(found))


def test_a_run_without_ended_trials_says_so() -> None:
    assert headline(run_frames([])) == ["No trial has ended yet."]


def test_a_run_of_skipped_trials_says_why_and_chooses_nothing(tmp_path: Path) -> None:
    said = told(tmp_path, skipped_trial(spec("zero2", offload_param="cpu"), "offload_param_needs_stage_3"))
    reason = "offload_param: DeepSpeed offloads parameters at stage 3 only"
    assert said == [f"0 of 1 trial completed; 1 skipped; most common reason: {reason} (1)."]


def test_of_a_command_that_was_watched_the_host_memory_is_told_first(tmp_path: Path) -> None:
    nodes = [
        HostSummary(
            hostname=f"n{size}",
            interval_s=0.1,
            num_samples=9,
            largest_gap_s=0.1,
            peak_rss_bytes=size * 2**30,
            peak_pss_bytes=None,
            group_peak_bytes=None,
            group_limit_bytes=None,
        )
        for size in (1, 3, 2)
    ]
    watched = failed_trial(small("zero1"), Failure(message="x"))
    watched = watched.with_record(host=nodes)
    assert told(tmp_path, watched)[0] == (
        "Peak host memory: 3.00 GiB for all processes of a node. No device memory recorded."
    )
    other = failed_trial(small("zero2"), Failure(message="x"))
    less = other.with_record(host=nodes[:1])
    assert "3.00 GiB for all processes of a node (zero1)." in told(tmp_path / "two", watched, less)[0]


def test_words_of_a_sweep_steer_no_terminal(tmp_path: Path) -> None:
    odd = spec("zero1").model.model_copy(update={"name": "m\x1b[2J"})
    trials: list[Any] = [completed_trial(small("zero1", model=odd)), completed_trial(small("zero2"))]
    assert not any("\x1b" in sentence for sentence in told(tmp_path, *trials))


@pytest.mark.parametrize("path", [BUCKETS, QUICKSTART])
def test_real_runs_are_told_in_three_to_six_sentences(path: Path) -> None:
    said = headline(run_frames([load_run(path)]))
    assert 3 <= len(said) <= 6
    assert all(sentence.endswith(".") for sentence in said)


@pytest.mark.parametrize(
    ("count", "who"), [(1, "1 trial completed."), (2, "Both trials completed."), (3, "All 3 trials completed.")]
)
def test_one_two_and_more_trials_have_their_own_words(tmp_path: Path, count: int, who: str) -> None:
    said = told(tmp_path, *(completed_trial(small(f"zero{stage}")) for stage in range(1, count + 1)))
    assert who in said
    assert any(sentence.startswith(("Both trials fit", "All 3 trials fit", "zero1 fits")) for sentence in said)
