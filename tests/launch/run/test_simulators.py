"""Simulators that are killed, stand still or never come up: what becomes of the trials they were at, and of the rest.

The simulator's loop, forks and words are the real ones; the trials only sleep, fall and complete (standin_simulator).
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.tools.children import living_children
from tests.tools.known import known
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import PredictionSpec, TrialSpec
from zerobench.launch.run import simulations, simulator
from zerobench.launch.run.oom import OomCounters
from zerobench.launch.run.simulations import Playing, predict
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import read_progress
from zerobench.records.records import TrialRecord

TIMEOUT_S = 2.0
Play = Callable[..., dict[str, TrialRecord]]


@pytest.fixture(autouse=True)
def _standin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "MODULE", "standin_simulator")
    monkeypatch.setattr(simulations, "_ANSWER_S", 1.0)


@pytest.fixture
def play(
    tmp_path: Path,
    make_trial: Callable[..., TrialSpec],
    put: Callable[[TrialSpec, Path], TrialFolder],
    wait_until: Callable[..., None],
) -> Iterator[Play]:
    """Plays trials named by what they do, `jobs` at a time; meanwhile, once one says where it is, does `then` to it."""

    def run(
        acts: Sequence[str], jobs: int = 1, then: Callable[[int], None] | None = None, playing: Playing = lambda _: None
    ) -> dict[str, TrialRecord]:
        as_said = {"evidence": "simulated", "prediction": PredictionSpec(gpu="A100 SXM 80GB"), "timeout_s": TIMEOUT_S}
        trials = [make_trial(f"t{at}", {0: act}, **as_said) for at, act in enumerate(acts)]
        folders = [put(trial, tmp_path) for trial in trials]
        words = folders[0].progress(0)

        def meddle() -> None:
            if then is not None:
                wait_until(lambda: read_progress(words))
                word = known(read_progress(words))
                then(word.pid)

        thread = threading.Thread(target=meddle)
        thread.start()
        records: list[TrialRecord] = []
        started: list[TrialSpec] = []
        pairs = list(zip(trials, folders, strict=True))
        predict(pairs, "a_run", jobs, Stop(), started.append, records.append, playing)
        thread.join()
        assert sorted(one.trial_id for one in started) == sorted(one.trial_id for one in trials)
        assert all(TrialRecord.model_validate_json(folder.record.read_bytes()) in records for folder in folders)
        by_id = {record.trial_id: record for record in records}
        return {act: by_id[trial.trial_id] for act, trial in zip(acts, trials, strict=True)}

    yield run
    assert living_children("standin_simulator") == []


def kill_simulator(fork: int) -> None:
    os.kill(os.getsid(fork), signal.SIGKILL)


def freeze_simulator(fork: int) -> None:
    os.killpg(os.getsid(fork), signal.SIGSTOP)


def freeze_only_the_simulator(fork: int) -> None:
    os.kill(os.getsid(fork), signal.SIGSTOP)


def test_a_killed_simulator_fails_the_trial_it_was_at_and_the_rest_goes_on_in_another(play: Play) -> None:
    records = play(["hang", "complete"], then=kill_simulator)
    hung = records["hang"]
    assert (hung.status, hung.exit_code) == (Status.CRASH, -signal.SIGKILL)
    assert hung.reason == "the simulator was killed by SIGKILL"
    assert records["complete"].status is Status.COMPLETED


def test_a_simulator_killed_for_want_of_memory_is_told_by_the_kernels_counter(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = itertools.chain([3, 3], itertools.repeat(4))  # before the simulator, and before the trial
    monkeypatch.setattr(simulations, "read_oom_counters", lambda: OomCounters({"/proc/vmstat": next(counts)}))
    records = play(["hang", "complete"], then=kill_simulator)
    hung = records["hang"]
    assert hung.status is Status.OUT_OF_HOST_MEMORY
    assert known(hung.failure).evidence == "oom_kill in /proc/vmstat rose by 1"


def test_a_simulation_that_is_killed_alone_is_a_crash_that_names_the_signal(play: Play) -> None:
    records = play(["die", "complete"])
    assert (records["die"].status, records["die"].reason) == (Status.CRASH, "the simulation was killed by SIGKILL")
    assert records["complete"].status is Status.COMPLETED


def test_a_frozen_simulator_is_found_by_the_progress_that_is_missing_and_the_rest_goes_on(
    play: Play,
) -> None:
    records = play(["hang", "complete"], then=freeze_simulator)
    assert records["hang"].status is Status.TIMEOUT
    assert (records["hang"].reason or "").startswith("no progress for 2 s: in init; the machine's load was ")
    assert records["complete"].status is Status.COMPLETED


def test_a_trial_that_ends_beside_a_frozen_simulator_has_completed(play: Play) -> None:
    records = play(["go on", "complete"], then=freeze_only_the_simulator)
    assert {record.status for record in records.values()} == {Status.COMPLETED}


def test_a_simulation_goes_on_as_long_as_it_makes_progress_and_a_hang_beside_it_is_ended_alone(play: Play) -> None:
    records = play(["go on", "hang", "complete"], jobs=2)
    assert {act: record.status for act, record in records.items()} == {
        "go on": Status.COMPLETED,
        "hang": Status.TIMEOUT,
        "complete": Status.COMPLETED,
    }
    spent_s = (records["go on"].ended_at_s or 0) - (records["go on"].started_at_s or 0)
    assert spent_s > 1.4 * TIMEOUT_S


def test_the_trials_in_hand_are_told_with_their_latest_word(play: Play) -> None:
    told: list[tuple[int, str | None]] = []
    play(["go on", "complete"], playing=lambda trials: told.extend((len(trials), w and w.phase) for _, w in trials))
    assert (1, "first") in told
    assert {number for number, _ in told} == {1}, "one at a time"


def test_each_trial_has_the_time_at_which_it_began_itself(play: Play) -> None:
    records = play(["go on", "complete"])
    first, second = records["go on"], records["complete"]
    assert (first.ended_at_s or 0) <= (second.started_at_s or 0) < (second.ended_at_s or 0)


def test_after_two_simulators_that_were_killed_before_they_began_a_trial_no_third_is_started(
    play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    monkeypatch.setenv("STANDIN_DIES_AT_START", str(begun))
    monkeypatch.setenv("STANDIN_DEATHS", "9")
    records = play(["a", "b", "c"], then=None)
    assert {record.status for record in records.values()} == {Status.CRASH}
    assert records["c"].reason == "the simulation was killed by SIGKILL"
    assert begun.read_text() == "xx"


def test_what_a_simulator_had_not_begun_when_it_was_killed_the_next_one_plays(
    play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STANDIN_DIES_AT_START", str(tmp_path / "begun"))
    monkeypatch.setenv("STANDIN_DEATHS", "1")
    assert {record.status for record in play(["a", "b"], jobs=2).values()} == {Status.COMPLETED}
