"""Several runners in one run, as the jobs of a cluster are: each runs what is given to it and nobody else does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tools.known import known
from tests.tools.laid_out import laid_out
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.models.presets import resolve_model
from zerobench.config.rules.rules import Skip
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.executor import Interruption, Launch, LocalExecutor
from zerobench.launch.run.launcher import launch_environment
from zerobench.launch.run.lock import locked, trial_locked
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult, run_beside_others
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import RunFolder, TrialFolder
from zerobench.records.records import Start
from zerobench.records.store import load_run, read_record

MakeTrial = Callable[..., TrialSpec]
NAMES = ("first", "second", "third", "skipped")


@dataclass(frozen=True)
class OneRankExecutor(LocalExecutor):
    """Starts the one rank of a trial without a launcher; it may lose its machine with the first trial that fails."""

    is_taken: bool = False
    stop: Stop | None = None

    def launch(self, trial: TrialSpec, folder: TrialFolder) -> Launch:
        added = launch_environment(trial, folder, num_cpus=1, num_gpus=0)
        argv = [sys.executable, "-m", "standin_worker", "--trial-folder", str(folder.path)]
        return Launch(argv, {**added, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"})

    def interruption(self) -> Interruption | None:
        if self.stop is not None:
            self.stop.ask()
        return Interruption(Status.PREEMPTED, "taken", "Slurm says") if self.is_taken else None


@pytest.fixture
def run(tmp_path: Path, make_trial: MakeTrial) -> RunFolder:
    trials = [make_trial(name, {0: _act(name)}, gpus_per_node=1) for name in NAMES[:3]]
    skip = Skip(rule="too_many_ranks", reason="8 ranks on 2 devices")
    skipped = PlannedTrial(trial=make_trial("skipped", gpus_per_node=8), skipped=skip)
    return laid_out(tmp_path / "a_run", [*trials, skipped])


def _act(name: str) -> str:
    return "crash" if name == "second" else "complete"


def ids(run: RunFolder, *names: str) -> list[str]:
    known = [entry.trial_id for entry in load_run(run.path).plan.trials]
    return [known[NAMES.index(name)] for name in names]


def go(run: RunFolder, trial_ids: Sequence[str], executor: OneRankExecutor, stop: Stop | None = None) -> RunResult:
    return run_beside_others(run.path, trial_ids, executor=executor, observer=Observer(), stop=stop or Stop())


EXECUTOR = OneRankExecutor(1, 0)


def begun(run: RunFolder) -> list[str]:
    return [name for name in NAMES if run.trial(ids(run, name)[0]).start.exists()]


def test_only_the_trials_that_are_named_run_and_those_that_ended_well_are_kept(run: RunFolder) -> None:
    assert go(run, ids(run, "first", "second"), EXECUTOR).statuses == Counter({Status.COMPLETED: 1, Status.CRASH: 1})
    before = run.trial(ids(run, "first")[0]).record.stat().st_mtime_ns
    again = go(run, ids(run, "first", "second", "skipped"), EXECUTOR)
    assert again.statuses == Counter({Status.COMPLETED: 1, Status.CRASH: 1, Status.SKIPPED: 1})
    assert again.exit_code == 1
    assert run.trial(ids(run, "first")[0]).record.stat().st_mtime_ns == before
    assert begun(run) == ["first", "second"]
    assert [path.name.rpartition(".")[2] for path in (run.path / "set_aside").iterdir()] == ["1"]


def test_a_trial_that_another_job_holds_is_left_to_it(run: RunFolder) -> None:
    with trial_locked(run.trial(ids(run, "first")[0])):
        result = go(run, ids(run, "first", "third"), EXECUTOR)
    assert result.statuses == Counter({Status.COMPLETED: 1})
    assert begun(run) == ["third"]


def test_a_run_that_somebody_holds_alone_is_refused(run: RunFolder) -> None:
    with locked(run), pytest.raises(UserError, match="is in use by another zerobench"):
        go(run, ids(run, "first"), EXECUTOR)


def test_a_trial_that_is_not_in_the_plan_is_refused_with_the_nearest(run: RunFolder) -> None:
    with pytest.raises(UserError, match="trial"):
        go(run, ["frist"], EXECUTOR)


def test_who_began_a_trial_and_where_is_known_from_its_start_on(run: RunFolder) -> None:
    go(run, ids(run, "first"), EXECUTOR)
    start = read_record(run.trial(ids(run, "first")[0]).start, Start)
    assert start.runner.startswith("process ")
    assert (start.job, start.nodes) == (None, [])


def test_a_trial_whose_machine_was_taken_says_so_and_no_other_begins(run: RunFolder) -> None:
    stop = Stop()
    executor = OneRankExecutor(1, 0, is_taken=True, stop=stop)
    result = go(run, ids(run, "second", "third"), executor, stop)
    assert result.statuses == Counter({Status.PREEMPTED: 1})
    assert result.exit_code == 130
    trial = next(load_run(run.path).trials())
    assert known(known(trial.record.failure).evidence).startswith("Slurm says; the ranks ended: rank 0: ValueError")
    assert begun(run) == ["second"]


@dataclass(frozen=True)
class JobExecutor(OneRankExecutor):
    """In a job that is being taken away."""

    job: str | None = "41_3"


def test_a_simulated_trial_that_is_cut_off_says_by_what_and_in_which_job(tmp_path: Path) -> None:
    """Stopped as soon as it has begun, which is before the simulator has come to it."""
    work = {"model": resolve_model("llama-20m"), "strategy": "zero1", "gpus_per_node": 2, "evidence": "simulated"}
    trial, stop = TrialSpec.model_validate(work), Stop()
    folder = laid_out(tmp_path / "a_run", [trial])

    class Stops(Observer):
        def trial_started(self, trial: TrialSpec, number: int, to_do: int) -> None:
            stop.ask()

    executor = JobExecutor(1, 0, is_taken=True, stop=stop)
    run_beside_others(folder.path, [trial.trial_id], executor=executor, observer=Stops(), stop=stop)
    [ended] = load_run(folder.path).trials()
    assert (ended.record.status, ended.record.reason) == (Status.PREEMPTED, "taken")
    assert known(ended.record.failure).evidence == "Slurm says"
    assert read_record(ended.folder.start, Start).job == "41_3"
