"""Predicted trials through the runner's side: the real simulator, typed outcomes, and an end when someone asks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.tools.laid_out import trial_laid_out
from tests.tools.tiny_trial import tiny
from zerobench.common.vocabulary import Status
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import Evidence, PredictionSpec, TrialSpec
from zerobench.launch.run import simulator
from zerobench.launch.run.simulations import predict
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import RunFolder, TrialFolder
from zerobench.records.records import RankRecord, TrialRecord

MARK = "ZEROBENCH_TEST_SIMULATIONS"


UNKNOWN = ModelSpec(name="unknown", hf_config={"model_type": "no_such_architecture"})
LARGE = tiny(model=resolve_model("llama-70b"), strategy="zero3", sequence_length=2048)
TRIALS = {
    "simulated": tiny(),
    "formula": tiny(evidence="formula"),
    "no formula": tiny(evidence="formula", model=UNKNOWN),
    "crash": tiny(model=UNKNOWN),
    "timeout": LARGE.model_copy(update={"timeout_s": 1.5}),
    "last rank": tiny(strategy="zero3", prediction=PredictionSpec(gpu="A100 SXM 80GB", rank=3)),
}


@dataclass
class Told:
    """What the runner was told as trials began and ended."""

    started: list[str] = field(default_factory=list)
    ended: list[TrialRecord] = field(default_factory=list)


@dataclass(frozen=True)
class Predicted:
    """Trials that were predicted."""

    folders: dict[str, TrialFolder]
    told: Told

    def record(self, name: str) -> TrialRecord:
        return TrialRecord.model_validate_json(self.folders[name].record.read_bytes())

    def rank(self, name: str, rank: int = 0) -> RankRecord:
        return RankRecord.model_validate_json(self.folders[name].rank_record(rank).read_bytes())


def predict_all(run: Path, trials: dict[str, TrialSpec], stop: Stop) -> Predicted:
    folders = {name: trial_laid_out(RunFolder(run).trial(trial.trial_id).path, trial) for name, trial in trials.items()}
    told = Told()
    predict(
        [(trials[name], folders[name]) for name in trials],
        "a_run",
        2,
        stop,
        lambda trial: told.started.append(trial.trial_id),
        told.ended.append,
    )
    return Predicted(folders, told)


def simulators() -> list[psutil.Process]:
    """Simulators, and their forks, that these tests have started, whoever is their parent now."""
    return [process for process in psutil.process_iter() if is_ours(process)]


def is_ours(process: psutil.Process) -> bool:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return alive and process.pid != os.getpid() and process.environ().get(MARK) == str(os.getpid())
    except (psutil.Error, OSError):
        return False


@pytest.fixture(scope="module", autouse=True)
def _marked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(os.getpid()))
        yield


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Predicted:
    return predict_all(tmp_path_factory.mktemp("run"), TRIALS, Stop())


def test_only_emulated_simulated_and_formula_trials_need_no_device():
    predicted = [evidence for evidence in Evidence if evidence.is_predicted]
    assert predicted == [Evidence.EMULATED, Evidence.SIMULATED, Evidence.FORMULA]


def test_every_trial_has_its_record_on_disk_with_its_own_status(predicted):
    statuses = {name: predicted.record(name).status for name in TRIALS}
    assert statuses == {
        "simulated": Status.COMPLETED,
        "formula": Status.COMPLETED,
        "no formula": Status.SKIPPED,
        "crash": Status.CRASH,
        "timeout": Status.TIMEOUT,
        "last rank": Status.COMPLETED,
    }


def test_the_runner_is_told_of_each_trial_as_it_begins_and_as_it_ends(predicted):
    ids = sorted(trial.trial_id for trial in TRIALS.values())
    assert sorted(predicted.told.started) == ids
    assert sorted(record.trial_id for record in predicted.told.ended) == ids
    for name in TRIALS:
        assert predicted.record(name) in predicted.told.ended


def test_a_completed_prediction_has_the_record_of_the_one_rank_that_was_played(predicted):
    for name, rank in [("simulated", 0), ("formula", 0), ("last rank", 3)]:
        record = predicted.record(name)
        assert (record.ranks_expected, record.ranks_reported, record.exit_code) == (1, 1, 0)
        assert (record.reason, record.failure) == (None, None)
        assert record.config_hash == TRIALS[name].config_hash
        one = predicted.rank(name, rank)
        assert (one.rank, one.trial_id, one.status) == (rank, TRIALS[name].trial_id, Status.COMPLETED)
        assert one.memory


def test_a_crash_within_the_simulation_is_a_crash_with_its_traceback(predicted):
    record = predicted.record("crash")
    assert record.failure is not None
    assert "no_such_architecture" in (record.failure.traceback or "")
    assert record.reason == record.failure.message
    assert record.exit_code == 1


def test_a_simulation_without_progress_is_a_timeout_that_names_the_limit(predicted):
    record = predicted.record("timeout")
    assert (record.reason or "").startswith("no progress for 1.5 s: in ")
    assert (record.reason or "").endswith("--set timeout_s=3 waits longer")
    assert record.ranks_reported == 0


def test_the_command_is_kept_so_that_a_trial_can_be_simulated_by_hand(predicted):
    words = predicted.folders["simulated"].command.read_text().split()
    assert words == [sys.executable, "-m", "zerobench.rank.loop.simulator"]


def test_nothing_is_left_running(predicted):
    assert simulators() == []


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, wait_until: Callable[..., None]) -> tuple[Predicted, float]:
    """A run that someone stops while its second trial is under way; how long the stop took, too."""
    run = tmp_path_factory.mktemp("stopped")
    stop = Stop()
    waiting = LARGE.model_copy(update={"repeat": 1})
    trials = {"quick": tiny(), "under way": LARGE, "also": waiting, "never begun": tiny(micro_batch_size=2)}
    asked: list[float] = []
    seen: list[int] = []

    def ask() -> None:
        folder = RunFolder(run).trial
        quick, large = folder(trials["quick"].trial_id), folder(LARGE.trial_id)
        wait_until(lambda: quick.record.exists() and large.progress(0).exists(), 240.0)
        seen.append(len(simulators()))
        asked.append(time.monotonic())
        stop.ask()

    thread = threading.Thread(target=ask)
    thread.start()
    done = predict_all(run, trials, stop)
    thread.join()
    assert seen[0] > 1  # the simulator and a trial, so that their absence afterwards says something
    return done, time.monotonic() - asked[0]


def test_a_stop_ends_the_simulations_at_once_and_leaves_nothing_running(stopped):
    _, seconds = stopped
    assert seconds < 5
    assert simulators() == []


def test_what_was_done_before_the_stop_stands_and_the_rest_is_interrupted(stopped):
    done, _ = stopped
    assert done.record("quick").status is Status.COMPLETED
    for name in ("under way", "also", "never begun"):
        record = done.record(name)
        assert record.status is Status.INTERRUPTED, name
        assert record.reason == "stopped before its end"
        assert (record.exit_code, record.ranks_reported) == (None, 0)


def test_a_stop_is_heard_among_formula_trials(tmp_path):
    trials = [tiny(evidence="formula").model_copy(update={"repeat": number}) for number in range(3)]
    stop = Stop()
    ended: list[TrialRecord] = []

    def end_one(record: TrialRecord) -> None:
        ended.append(record)
        stop.ask()

    pairs = [(trial, trial_laid_out(tmp_path / trial.trial_id, trial)) for trial in trials]
    predict(pairs, "a_run", 2, stop, lambda _: None, end_one)
    assert [record.trial_id for record in ended] == [trials[0].trial_id]
    assert [folder.record.exists() for _, folder in pairs] == [True, False, False]


def test_a_simulator_that_dies_leaves_its_trials_as_crashes_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(simulator, "MODULE", "a_module_that_does_not_exist")
    done = predict_all(tmp_path, {"simulated": tiny(), "formula": tiny(evidence="formula")}, Stop())
    assert done.record("formula").status is Status.COMPLETED
    record = done.record("simulated")
    assert record.status is Status.CRASH
    assert "the simulation ended with status 1" in (record.reason or "")
    assert "No module named a_module_that_does_not_exist" in (record.reason or "")
