"""The word of a log about its training, and where a prediction of it says otherwise."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.report.explain.test_log import FIRST_UPDATE, TORCH_2_1
from tests.report.sample_run import SampleTrial, completed_trial, spec
from zerobench.app.search.changes import changes_of_file
from zerobench.common.vocabulary import Category, Phase, Place
from zerobench.config.derived.cluster import Cluster
from zerobench.config.hardware.gpu_names import known_gpu
from zerobench.report.documents.view import plan_row
from zerobench.report.explain.logged import (
    LoggedTraining,
    contradictions_topic,
    logged_training,
    versions_in,
    versions_topic,
)
from zerobench.report.explain.rows import PlanRow

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


def with_peaks(peaks: Mapping[Phase, int]) -> PlanRow:
    """A prediction whose device holds so many bytes at the peak of each phase."""
    trial = completed_trial(spec("zero2", gpus_per_node=1))
    rows = [
        row.model_copy(update={"at_peak_bytes": peaks[row.phase], "own_peak_bytes": peaks[row.phase]})
        for row in trial.ranks[0].memory
        if row.place is Place.DEVICE and row.category is Category.TOTAL
    ]
    return _row(trial.with_ranks(memory=rows))


def _row(trial: SampleTrial) -> PlanRow:
    return plan_row(trial, "zero2", Cluster(known_gpu("h100", "--gpu")))


LOW = {Phase.INIT: GIB, Phase.FORWARD: 10 * GIB, Phase.BACKWARD: 12 * GIB, Phase.STEP: 20 * GIB}
UPDATE = LoggedTraining(capacity_bytes=24 * GIB, attempted_bytes=20 * GIB, phase="the update")


def contradictions(logged: LoggedTraining, row: PlanRow | None, catalogued: int = 24 * GIB) -> list[str]:
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
