"""Why two trials differ: held against real runs, to the byte."""

from pathlib import Path
from typing import Any

import pytest

from tests.report.explain.runs import (
    BUCKETS,
    LARGE_2,
    LARGE_3,
    OFFLOADED,
    QUICKSTART,
    SMALL_2,
    SMALL_3,
    data,
    named,
    text,
    told,
)
from tests.report.sample_run import RUN_ID, SampleTrial, completed_trial, spec, write_run
from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.trial.trial import OwnScript
from zerobench.records.instants import largest_peak
from zerobench.records.store import load_run
from zerobench.report.explain.topic import as_text, heads, says
from zerobench.report.explain.trial import explain


def differences(path: Path, a: str, b: str) -> dict[str, int]:
    found: Any = data(path, a, b)["differences"]
    return {one["category"]: one["more_bytes"] for one in found}


@pytest.mark.parametrize(
    ("path", "a", "b"),
    [
        (BUCKETS, LARGE_2, LARGE_3),
        (BUCKETS, SMALL_2, LARGE_2),
        (BUCKETS, OFFLOADED, LARGE_3),
        (QUICKSTART, "zero2", "zero3"),
        (QUICKSTART, "zero3 defaults", "zero2"),
    ],
)
def test_the_differences_add_up_to_that_of_the_peaks_to_the_byte(path: Path, a: str, b: str) -> None:
    peaks = [largest_peak(named(path, name).trial, StepKind.STEADY, Place.DEVICE) for name in (a, b)]
    more = known(peaks[1]).total_bytes - known(peaks[0]).total_bytes
    assert sum(differences(path, a, b).values()) == more
    assert f"({more:+,} bytes)" in text(path, a, b)


def test_stage_3_needs_more_than_stage_2_on_a_small_model_for_its_bucket_and_what_it_gathers() -> None:
    """Simulated on H200: the bucket of stage 3 is there when the logits are, that of stage 2 is not yet."""
    said = text(BUCKETS, LARGE_2, LARGE_3)
    assert f"{LARGE_2} and {LARGE_3} differ in strategy: zero2 -> zero3 Device memory" in said
    assert "645.99 MiB more than" in said
    assert "+676.77 MiB gathered parameters: 0 B -> 676.77 MiB zero3: all of them (stage3_max_live" in said
    assert "-592.18 MiB parameters: 676.77 MiB -> 84.60 MiB" in said
    assert "stage3_max_live_parameters 1e9 exceeds the model: all of it stays gathered." in said
    assert "Logits and loss reach 588.95 MiB in backward of both trials, but not at the peak of zero2" in said
    assert "zero2 has reduce buffers of up to 1.59 GiB in backward, and 0 B after the step." in said
    assert "zero3 keeps its reduce bucket, 953.67 MiB, through the whole step." in said
    assert "The bucket adds to the whole peak of zero3; zero2 allocates it while backward frees memory." in said
    assert "276.90 MiB of 953.67 MiB unused (354,823,168 gradients)." in said


def test_stage_3_with_deepspeeds_own_bucket_is_larger_by_that_bucket_in_a_measured_run() -> None:
    said = text(QUICKSTART, "zero2", "zero3 defaults")
    assert next(iter(differences(QUICKSTART, "zero2", "zero3 defaults"))) == "reduce_buffers"
    assert differences(QUICKSTART, "zero2", "zero3 defaults")["reduce_buffers"] == 1_000_000_000
    assert "+953.67 MiB reduce buffers: 0 B -> 953.67 MiB zero3 defaults: reduce_bucket_size 5e8 x 2 bytes" in said
    assert "reduce_bucket_size: 1e6 -> 5e8 (default)" in said
    assert "913.41 MiB of 953.67 MiB unused (21,109,248 gradients)." in said


def test_at_stage_3_the_bucket_alone_is_what_reduce_bucket_size_makes() -> None:
    found = differences(BUCKETS, SMALL_3, LARGE_3)
    assert found["reduce_buffers"] == 2 * (500_000_000 - 50_000_000)
    assert sum(abs(size) for category, size in found.items() if category != "reduce_buffers") < 1024
    said = text(BUCKETS, SMALL_3, LARGE_3)
    assert "differ in reduce_bucket_size: 5e7 -> 5e8 Device memory" in said
    assert f"{SMALL_3} keeps its reduce bucket, 95.37 MiB, through the whole step." in said


def test_at_stage_2_a_large_bucket_moves_the_peak_to_where_it_is_allocated() -> None:
    found = differences(BUCKETS, SMALL_2, LARGE_2)
    assert found["reduce_buffers"] == 1_000_000_000
    assert found["logits_and_loss"] < -588 * 2**20
    assert f"of both trials, but not at the peak of {LARGE_2}." in text(BUCKETS, SMALL_2, LARGE_2)


def test_swapping_the_two_trials_swaps_the_signs() -> None:
    there, back = differences(BUCKETS, LARGE_2, LARGE_3), differences(BUCKETS, LARGE_3, LARGE_2)
    assert back == {category: -size for category, size in there.items()}
    assert "zero3 partitions the parameters, 592.18 MiB less" in text(BUCKETS, LARGE_3, LARGE_2)


def test_start_up_is_told_where_it_needs_more_than_the_steady_state(tmp_path: Path) -> None:
    steady = text(BUCKETS, LARGE_2, LARGE_3)
    assert "start-up included, is another matter" not in steady
    trials = [_with_start_up(completed_trial(spec(strategy)), 10**12) for strategy in ("zero2", "zero3")]
    write_run(tmp_path / RUN_ID, trials, samples=False)
    said = text(tmp_path / RUN_ID, "zero2", "zero3")
    fit = "Including start-up: zero2 931.32 GiB (initialization) and zero3"
    assert fit in said
    assert "Start-up peak, which must fit too: 931.32 GiB, in initialization" in text(tmp_path / RUN_ID, "zero2")


def _with_start_up(sample: SampleTrial, nbytes: int) -> SampleTrial:
    """The same trial with another peak of initialization."""
    return sample.with_ranks(
        memory=lambda rank: [
            row.model_copy(update={"at_peak_bytes": nbytes})
            if (row.phase, row.place, row.category) == (Phase.INIT, Place.DEVICE, Category.TOTAL)
            else row
            for row in rank.memory
        ]
    )


def test_repeats_differ_in_nothing_that_was_asked() -> None:
    assert "No setting." in text(BUCKETS, LARGE_2, LARGE_2)
    assert "as much as" in text(BUCKETS, LARGE_2, LARGE_2)


def test_the_stage_of_scripts_is_named_once(tmp_path: Path) -> None:
    for stage in (2, 3):
        own = OwnScript(name="train")
        script = spec(f"zero{stage}", own=own, ds_config={"zero_optimization.stage": stage})
        write_run(tmp_path / str(stage), [completed_trial(script)], samples=False)
    topics = explain(load_run(tmp_path / "2"), "zero2", (load_run(tmp_path / "3"), "zero3"))
    [lines] = [topic.lines for topic in topics if topic.title.endswith("differ in")]
    assert [line.text for line in lines] == ["strategy: zero2 -> zero3"]


def test_one_sentence_more_is_told_and_several_are_counted() -> None:
    lines = says("a", "b", "c", "d")
    assert [line.text for line in heads(lines, 3)] == ["a", "b", "c", "d"]
    assert [line.text for line in heads(lines, 2)] == ["a", "b", "and 2 more"]


def test_trials_of_two_runs_are_told_apart_by_their_runs() -> None:
    run, other = load_run(QUICKSTART), load_run(BUCKETS)
    said = " ".join(as_text(explain(run, "zero2", (other, OFFLOADED))).split())
    assert "model: llama-20m -> gpt2-350m" in said
    assert "model.model_type: llama -> gpt2" in said
    same = " ".join(as_text(explain(run, "zero2", (load_run(QUICKSTART), "zero2"))).split())
    assert f"zero2 @ {run.run_id}" in same


def sample(tmp_path: Path, first_s: float, second_s: float) -> str:
    trials = [completed_trial(spec("zero2"), step_s=first_s), completed_trial(spec("zero3"), step_s=second_s)]
    write_run(tmp_path / RUN_ID, trials)
    return text(tmp_path / RUN_ID, "zero2", "zero3")


def test_a_difference_of_speed_beyond_the_spread_is_told_by_phase(tmp_path: Path) -> None:
    said = sample(tmp_path, 0.2, 0.4)
    assert "zero3 takes 424 ms per step, zero2 212 ms (+100.0%): backward +127 ms, forward +63.6 ms, optimizer" in said


def test_a_difference_of_speed_within_the_spread_is_not_called_one(tmp_path: Path) -> None:
    said = sample(tmp_path, 0.2, 0.201)
    assert "overlap" in said
    assert "neither is measurably faster" in said


def test_what_was_not_timed_is_not_compared_in_time() -> None:
    assert "Measured speed: needs timed steps in both trials." in text(BUCKETS, LARGE_2, LARGE_3)


def test_topics_have_no_empty_lines_and_no_empty_titles() -> None:
    for topic in at_least_one(told(QUICKSTART, "zero2", "zero3")):
        assert topic.title
        assert all(line.text for line in topic.lines)
