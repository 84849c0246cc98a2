"""The word of a log about its training, and where a prediction of it says otherwise."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.explain.test_log import FIRST_UPDATE, TORCH_2_1
from tests.report.sample_run import SampleTrial, completed_trial, spec
from zerobench.app.search.changes import changes_of_file
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.cluster import Cluster
from zerobench.config.hardware.hardware import known_gpu
from zerobench.report.explain.logged import (
    LoggedTraining,
    contradictions_topic,
    logged_training,
    versions_in,
    versions_topic,
)
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.trial import TrialFigures

GIB = 2**30
RELEASES = {"torch": "2.13.0+cpu", "deepspeed": "0.19.8", "transformers": "5.23.0"}
VERSIONS = """\
[INFO] [logging.py:128:log_dist] [Rank 0] DeepSpeed info: version=0.16.4, git-hash=unknown, git-branch=unknown
torch version .................... 2.5.1+cu124
  "transformers_version": "4.48.0",
peft==0.14.0
"""


def test_capacity_phase_and_what_was_attempted_are_the_logs_own() -> None:
    found = logged_training(FIRST_UPDATE + VERSIONS)
    assert found.capacity_bytes == int(79.32 * GIB)
    assert found.attempted_bytes == int(73.28 * GIB) + int(3.39 * GIB)
    assert (found.phase, found.has_activations, found.of_host) == ("the update", False, False)
    assert found.versions["deepspeed"] == "0.16.4"


def test_a_limit_of_the_process_is_what_it_could_take() -> None:
    told = "GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free. 40.00 GiB allowed; "
    text = f"CUDA out of memory. Tried to allocate 2.00 GiB. {told}"
    assert logged_training(text).capacity_bytes == 40 * GIB


def test_of_several_refusals_without_a_traceback_the_first_is_read() -> None:
    again = TORCH_2_1.replace("capacty of 6.00 GiB", "capacty of 5.00 GiB")
    assert again != TORCH_2_1
    assert logged_training(f"{TORCH_2_1}\n{again}").capacity_bytes == 6 * GIB


def test_a_log_without_a_traceback_may_have_held_activations() -> None:
    found = logged_training(TORCH_2_1)
    assert (found.phase, found.has_activations, found.capacity_bytes) == (None, True, 6 * GIB)


@pytest.mark.parametrize(
    ("line", "versions"),
    [
        (VERSIONS, {"deepspeed": "0.16.4", "torch": "2.5.1+cu124", "transformers": "4.48.0", "peft": "0.14.0"}),
        ("deepspeed info ................... 0.15.1, unknown, unknown", {}),
        ("PyTorch version: 2.4.0", {"torch": "2.4.0"}),
        ("- `transformers` version: 4.46.2", {"transformers": "4.46.2"}),
        ("deepspeed version ... 0.14.5", {"deepspeed": "0.14.5"}),
        ("a torch is 2.5 m long, transformers 4 at most", {}),
    ],
)
def test_versions_are_read_as_packages_print_them(line: str, versions: Mapping[str, str]) -> None:
    assert versions_in(line) == versions


def test_versions_are_told_and_no_topic_where_there_are_none() -> None:
    [topic] = versions_topic(logged_training(FIRST_UPDATE + VERSIONS))
    assert topic.figures["versions"]["torch"] == "2.5.1+cu124"
    assert versions_topic(logged_training(FIRST_UPDATE)) == []


def with_peaks(peaks: Mapping[Phase, int]) -> TrialFigures:
    """A prediction whose device holds so many bytes at the peak of each phase."""
    trial = completed_trial(spec("zero2", gpus_per_node=1))
    rows = [
        row.model_copy(update={"at_peak_bytes": peaks[row.phase], "own_peak_bytes": peaks[row.phase]})
        for row in trial.ranks[0].memory
        if row.place is Place.DEVICE and row.category is Category.TOTAL
    ]
    return _row(trial.with_ranks(memory=rows))


def _row(trial: SampleTrial) -> TrialFigures:
    return trial_figures(trial, "zero2", Cluster(known_gpu("h100", "--gpu")))


LOW = {Phase.INIT: GIB, Phase.FORWARD: 10 * GIB, Phase.BACKWARD: 12 * GIB, Phase.STEP: 20 * GIB}
UPDATE = LoggedTraining(capacity_bytes=24 * GIB, attempted_bytes=20 * GIB, phase="the update")


def contradictions(logged: LoggedTraining, row: TrialFigures | None, catalogued: int = 24 * GIB) -> list[str]:
    topics = contradictions_topic(logged, row, catalogued, RELEASES)
    return [line for topic in topics for line in topic.figures["contradictions"]]


def test_a_phase_that_the_log_passed_and_the_prediction_does_not_is_said_in_one_line() -> None:
    [line] = contradictions(UPDATE, with_peaks({**LOW, Phase.FORWARD: 48 * GIB, Phase.BACKWARD: 49 * GIB}))
    assert line.startswith("Forward passed with 24.00 GiB; the prediction needs 48.00 GiB there: check model, micro")
    [line] = contradictions(UPDATE, with_peaks({**LOW, Phase.BACKWARD: 49 * GIB}))
    assert line.startswith("Backward passed with 24.00 GiB; the prediction needs 49.00 GiB there")


def test_the_phase_in_which_memory_ran_out_was_not_passed() -> None:
    assert contradictions(UPDATE, with_peaks({**LOW, Phase.STEP: 49 * GIB})) == []


def test_a_prediction_of_less_than_the_log_had_allocated_is_said_in_one_line() -> None:
    [line] = contradictions(UPDATE, with_peaks({**LOW, Phase.STEP: 13 * GIB}))
    assert line.startswith("20.00 GiB were allocated or requested in the update; the prediction's peak there is 13.00")


@pytest.mark.parametrize("phase", ["the update", None, "evaluation"])
def test_a_prediction_that_agrees_is_not_contradicted(phase: str | None) -> None:
    logged = LoggedTraining(capacity_bytes=24 * GIB, attempted_bytes=20 * GIB, phase=phase)
    assert contradictions(logged, with_peaks(LOW)) == []
    assert contradictions(logged, None) == []


def test_another_gpu_and_other_versions_are_said() -> None:
    logged = LoggedTraining(capacity_bytes=24 * GIB, versions={"torch": "2.13.0+cu130", "transformers": "4.48.0"})
    assert contradictions(logged, None, 80 * GIB) == [
        "GPU memory: 24.00 GiB in the log, 80.00 GiB in the catalogue for --gpu; the log's is taken.",
        "Versions in the log, and in the prediction: transformers 4.48.0 (5.23.0).",
    ]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}))
    return path


def test_what_makes_activations_smaller_is_not_offered_where_there_are_none(config: Path) -> None:
    smaller = {"activation checkpointing"}
    assert smaller <= set(changes_of_file(str(config)))
    found = changes_of_file(str(config), has_activations=False)
    assert found == ["ZeRO stage 2", "ZeRO stage 3", "optimizer states offloaded to the host"]


@pytest.mark.parametrize(("predicted", "is_contradicted"), [(20.0, False), (19.2, False), (18.9, True)])
def test_a_prediction_may_be_a_twentieth_below_what_a_log_rounds(predicted: float, is_contradicted: bool) -> None:
    """20 GiB were allocated or asked for, and a message has two digits of each part."""
    row = with_peaks({**LOW, Phase.STEP: int(predicted * GIB)})
    assert bool(contradictions(UPDATE, row)) is is_contradicted


@pytest.mark.parametrize(("seen", "is_said"), [(24.0, False), (22.9, False), (25.1, False), (22.7, True), (25.3, True)])
def test_a_gpu_is_another_one_beyond_a_twentieth_of_its_memory(seen: float, is_said: bool) -> None:
    assert bool(contradictions(LoggedTraining(capacity_bytes=int(seen * GIB)), None)) is is_said
    assert contradictions(LoggedTraining(), None) == []


def test_a_phase_that_fills_the_gpu_to_the_byte_could_pass() -> None:
    assert contradictions(UPDATE, with_peaks({**LOW, Phase.BACKWARD: 24 * GIB})) == []
    assert len(contradictions(UPDATE, with_peaks({**LOW, Phase.BACKWARD: 24 * GIB + 1}))) == 1


def with_step_peaks(first: int, steady: int, phase: Phase) -> TrialFigures:
    """A prediction of one phase whose peaks differ between the first and a steady step."""
    trial = completed_trial(spec("zero2", gpus_per_node=1))
    peaks = {StepKind.FIRST: first, StepKind.STEADY: steady}
    rows = [
        row.model_copy(update={"at_peak_bytes": peaks[row.step], "own_peak_bytes": peaks[row.step]})
        for row in trial.ranks[0].memory
        if (row.place, row.category, row.phase) == (Place.DEVICE, Category.TOTAL, phase)
    ]
    return _row(trial.with_ranks(memory=rows))


@pytest.mark.parametrize(("first", "steady"), [(10, 30), (30, 10)])
def test_of_the_first_and_a_steady_step_that_one_is_taken_which_agrees_with_the_log(first: int, steady: int) -> None:
    """Nobody knows in which of them memory ran out: a phase passed as the smaller, and needed as much as the larger."""
    passed = with_step_peaks(first * GIB, steady * GIB, Phase.BACKWARD)
    assert contradictions(UPDATE, passed) == []
    [line] = contradictions(UPDATE, with_step_peaks(25 * GIB, 30 * GIB, Phase.BACKWARD))
    assert "needs 25.00 GiB" in line
    needed = with_step_peaks(first * GIB, steady * GIB, Phase.STEP)
    asked = LoggedTraining(capacity_bytes=64 * GIB, attempted_bytes=30 * GIB, phase="the update")
    assert contradictions(asked, needed, 64 * GIB) == []
    [line] = contradictions(replace(asked, attempted_bytes=40 * GIB), needed, 64 * GIB)
    assert "peak there is 30.00 GiB" in line


def test_where_the_log_tells_no_phase_the_largest_of_all_is_held_against_it() -> None:
    """None of them is known to have passed."""
    unknown = LoggedTraining(capacity_bytes=5 * GIB, attempted_bytes=40 * GIB)
    [line] = contradictions(unknown, with_peaks(LOW), 5 * GIB)
    assert line.startswith("40.00 GiB were allocated or requested; the prediction's peak there is 20.00 GiB")


def test_of_host_memory_a_prediction_of_the_gpu_is_not_held_against_the_log() -> None:
    host = LoggedTraining(of_host=True, capacity_bytes=24 * GIB, attempted_bytes=90 * GIB, phase="the update")
    assert contradictions(host, with_peaks({**LOW, Phase.FORWARD: 48 * GIB})) == []


@pytest.mark.parametrize(("phase", "expected"), [
    ("loading", False), ("initialization", False), ("the update", False), ("saving", False),
    ("forward", True), ("backward", True), ("evaluation", True), ("generation", True), (None, True),
])  # fmt: skip
def test_activations_are_held_in_the_passes_and_wherever_nobody_knows(phase: str | None, expected: bool) -> None:
    assert LoggedTraining(phase=phase).has_activations is expected


@pytest.mark.parametrize(("theirs", "ours", "differs"), [
    ("2.5.1", "2.5.1", False), ("2.5.1+cu124", "2.5.1+cpu", False), ("2.5.0", "2.5.1", True), ("2.5", "2.5.1", True),
    ("2.50", "2.5", True), ("2.5.1.dev1", "2.5.1", True),
])  # fmt: skip
def test_releases_differ_by_every_part_but_what_a_build_adds(theirs: str, ours: str, differs: bool) -> None:
    logged = LoggedTraining(versions={"torch": theirs})
    assert bool(contradictions_topic(logged, None, None, {"torch": ours})) is differs
    assert contradictions_topic(logged, None, None, {"torch": None}) == []
    assert contradictions_topic(logged, None, None, {}) == []


def test_of_a_package_that_a_log_names_twice_the_last_word_counts() -> None:
    assert versions_in("torch==2.4.0\nPyTorch version: 2.5.1\n") == {"torch": "2.5.1"}


def test_the_refusal_with_a_traceback_is_read_before_an_earlier_one_without() -> None:
    assert logged_training(f"{TORCH_2_1}\n{FIRST_UPDATE}").capacity_bytes == int(79.32 * GIB)


def test_a_killed_process_is_of_host_memory_and_tells_no_sizes() -> None:
    assert logged_training("Out of memory: Killed process 7 (python) total-vm:1kB") == LoggedTraining(of_host=True)
    assert logged_training("all is well") == LoggedTraining()


def test_what_was_attempted_is_known_where_both_of_its_parts_are() -> None:
    without = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 6.00 GiB of which 1 is"
    found = logged_training(without)
    assert (found.attempted_bytes, found.of_host) == (None, False)
