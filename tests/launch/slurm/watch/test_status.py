"""How a run stands: each trial from its folder and from what Slurm says."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.launch.slurm.run_folders import SUBMITTED_S, begin, end, job, make_run, submit
from tests.tools.at_least_one import at_least_one
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.launch.run.lock import locked, shared
from zerobench.launch.slurm.jobs import JobKind, SubmittedJob
from zerobench.launch.slurm.queue import JobStates
from zerobench.launch.slurm.tasks import TaskState
from zerobench.launch.slurm.watch.status import RunFacts, RunStatus, Standing, TrialStatus, run_status
from zerobench.launch.slurm.watch.traces import UNREADABLE, TrialTrace, read_traces
from zerobench.launch.slurm.watch.watching import Watcher, runner_here
from zerobench.records.folder import RunFolder
from zerobench.records.records import Start
from zerobench.records.store import PlanEntry

NOW_S = SUBMITTED_S + 1000.0
BEGUN = TrialTrace(begun_s=NOW_S - 50, changed_s=NOW_S - 5)
ARRAY = job("1-node", 7, 2)


def state(task: int | None, word: str, reason: str | None = None, start_s: float | None = None) -> TaskState:
    return TaskState(task, (word,), reason, start_s=start_s, end_s=None if start_s is None else start_s + 600)


def status_of(
    traces: dict[str, TrialTrace],
    states: JobStates | None,
    jobs: Sequence[SubmittedJob] = (ARRAY,),
    tasks: dict[str, list[list[str]]] | None = None,
    runner_here: bool | None = False,
) -> RunStatus:
    """Of trials `a`, `b` (task 0) and `c` (task 1)."""
    return run_status(
        RunFacts(
            plan=[PlanEntry(trial_id=trial_id) for trial_id in ("a", "b", "c")],
            traces=traces,
            now_s=NOW_S,
            jobs=jobs,
            tasks={"1-node": [["a", "b"], ["c"]]} if tasks is None else tasks,
            states=states,
            runner_here=runner_here,
        )
    )


def standings(status: RunStatus) -> list[str]:
    return [trial.standing.value for trial in status.trials]


def ended(status: str, ended_s: float = NOW_S - 100, reason: str | None = None) -> TrialTrace:
    return TrialTrace(status=status, ended_s=ended_s, reason=reason)


def test_a_trial_with_a_record_ended_whatever_slurm_says() -> None:
    traces = {"a": ended("completed"), "b": ended("out_of_device_memory", reason="rank 3: no"), "c": ended("timeout")}
    answers: list[JobStates | None] = [None, {7: []}, {7: [state(0, "RUNNING", start_s=NOW_S - 500)]}]
    for states in at_least_one(answers):
        status = status_of(traces, states)
        assert standings(status) == ["completed", "failed", "failed"]
        assert status.trials[1].reason == "rank 3: no"
        assert status.exit_code == 1


def test_a_status_that_a_newer_version_writes_is_a_failure_by_its_own_name() -> None:
    status = status_of({"a": ended("eaten"), "b": ended("completed"), "c": ended("completed")}, {7: []})
    assert standings(status) == ["failed", "completed", "completed"]


def test_the_trial_that_a_running_task_began_last_runs_and_its_others_are_queued() -> None:
    states = {7: [state(0, "RUNNING", start_s=NOW_S - 100), state(1, "PENDING", "Resources")]}
    status = status_of({"a": BEGUN}, states)
    assert standings(status) == ["running", "queued", "queued"]
    assert status.trials[0].silence_s == 5.0
    assert (status.trials[0].task_id, status.trials[2].task_id) == (0, 1)
    assert [trial.reason for trial in status.trials] == [None, None, "Resources"]
    assert status.exit_code == 3


def test_of_two_trials_that_a_task_began_the_later_one_runs() -> None:
    states = {7: [state(0, "RUNNING", start_s=NOW_S - 100)]}
    assert standings(status_of({"a": BEGUN, "b": TrialTrace(begun_s=NOW_S - 20)}, states))[:2] == ["queued", "running"]


def test_a_trial_begun_before_its_job_was_requeued_waits_for_its_second_go() -> None:
    states = {7: [state(0, "RUNNING", start_s=NOW_S - 10), state(1, "PENDING", "BeginTime")]}
    old = TrialTrace(begun_s=NOW_S - 500)
    assert standings(status_of({"a": old, "c": old}, states)) == ["queued", "queued", "queued"]


def test_all_begun_predictions_of_a_task_run_since_it_does_them_side_by_side() -> None:
    predictions = job("predictions", 7, 1, JobKind.PREDICTIONS)
    states = {7: [state(0, "RUNNING", start_s=NOW_S - 100)]}
    later = TrialTrace(begun_s=NOW_S - 20)
    status = status_of({"a": BEGUN, "b": later}, states, [predictions], {"predictions": [["a", "b", "c"]]})
    assert standings(status) == ["running", "running", "queued"]


@pytest.mark.parametrize("states", [{7: []}, {7: [state(0, "NODE_FAIL"), state(1, "CANCELLED")]}])
def test_what_was_begun_is_lost_and_the_rest_left_over_once_their_job_is_over(states: JobStates) -> None:
    status = status_of({"a": BEGUN}, states)
    assert standings(status) == ["lost", "left over", "left over"]
    assert status.exit_code == 1


def test_without_slurms_word_nothing_is_called_running_or_lost() -> None:
    status = status_of({"a": BEGUN}, None)
    assert standings(status) == ["begun", "submitted", "submitted"]
    assert status.trials[0].silence_s == 5.0
    assert (status.slurm_answers, status.exit_code) == (False, 3)
    assert status.jobs[0].states == {"unknown": 2}


@pytest.mark.parametrize("word", ["preempted", "node_failure", "cancelled", "interrupted", "crash", "unreadable"])
def test_what_did_not_complete_is_queued_again_while_its_job_is_requeued(word: str) -> None:
    waiting = {7: [state(0, "PENDING", "BeginTime")]}
    again = {7: [state(0, "RUNNING", start_s=NOW_S - 10)]}
    for states in (waiting, again):
        assert standings(status_of({"a": ended(word), "b": ended("completed")}, states))[:2] == ["queued", "completed"]
    ending = {7: [state(0, "COMPLETING", start_s=NOW_S - 500)]}
    assert standings(status_of({"a": ended(word)}, ending))[0] == "failed"


def test_the_job_that_a_trial_was_begun_in_tells_whether_it_was_in_this_start_of_it() -> None:
    running = TaskState(0, ("RUNNING",), start_s=NOW_S - 45, restart_count=1)  # clocks apart tell nothing here
    for job_name, expected in {"7_0.2": "running", "7_0": "queued", "5_0": "queued"}.items():
        begun = TrialTrace(begun_s=NOW_S - 50, job=job_name)
        assert standings(status_of({"a": begun}, {7: [running]}))[0] == expected
    first = TaskState(0, ("RUNNING",), start_s=NOW_S - 45, restart_count=0)
    assert standings(status_of({"a": TrialTrace(begun_s=NOW_S - 50, job="7_0")}, {7: [first]}))[0] == "running"


def test_a_failed_trial_that_was_submitted_again_is_queued_in_its_new_job() -> None:
    second = job("1-node-2", 9, 1).model_copy(update={"submitted_at_s": NOW_S - 60})
    states = {7: [], 9: [state(0, "PENDING", "Priority")]}
    status = status_of(
        {"a": ended("crash"), "b": ended("completed"), "c": BEGUN},
        states,
        [ARRAY, second],
        {"1-node": [["a", "b"], ["c"]], "1-node-2": [["a", "c"]]},
    )
    assert standings(status) == ["queued", "completed", "queued"]
    assert status.trials[0].job is second


def test_where_slurm_does_not_say_when_a_task_started_its_submission_tells() -> None:
    active = {7: [TaskState(0, ("CONFIGURING",))]}
    assert standings(status_of({"a": ended("crash", SUBMITTED_S - 5)}, active))[0] == "queued"
    assert standings(status_of({"a": ended("crash", SUBMITTED_S + 5)}, active))[0] == "failed"


def test_a_job_that_lives_is_believed_before_a_later_one_that_is_over() -> None:
    second = job("1-node-2", 9, 1)
    tasks = {"1-node": [["a", "b"], ["c"]], "1-node-2": [["a"]]}
    states = {7: [state(0, "RUNNING", start_s=NOW_S - 100)], 9: []}
    assert standings(status_of({"a": BEGUN}, states, [ARRAY, second], tasks))[0] == "running"
    both_over = status_of({"a": BEGUN}, {7: [], 9: []}, [ARRAY, second], tasks)
    assert both_over.trials[0].job is second


def test_a_trial_in_no_job_was_not_started() -> None:
    status = status_of({}, {7: [state(0, "RUNNING", start_s=NOW_S)]}, tasks={"1-node": [["a", "b"]]})
    assert standings(status) == ["queued", "queued", "not started"]


@pytest.mark.parametrize(
    ("runner_here", "expected", "code"),
    [
        (True, ["running", "completed", "queued"], 3),
        (False, ["lost", "completed", "not started"], 1),
        (None, ["begun", "completed", "submitted"], 3),
    ],
)
def test_an_ordinary_run_goes_on_as_long_as_its_runner_lives(
    runner_here: bool | None, expected: list[str], code: int
) -> None:
    traces = {"a": BEGUN, "b": ended("completed")}
    status = status_of(traces, {}, jobs=[], tasks={}, runner_here=runner_here)
    assert (standings(status), status.exit_code) == (expected, code)


def test_a_lost_trial_that_somebody_now_runs_outside_of_slurm_runs() -> None:
    assert standings(status_of({"a": BEGUN}, {7: []}, runner_here=True))[0] == "running"


def test_an_arrays_tasks_are_counted_by_slurms_word_and_those_that_it_forgot_as_ended() -> None:
    tasks = [
        TaskState(0, ("RUNNING",), end_s=NOW_S + 60, restart_count=2),
        TaskState(1, ("RUNNING", "COMPLETING"), end_s=NOW_S + 90, restart_count=0),
        TaskState(2, ("PENDING",), "Priority", restart_count=1),
    ]
    jobs = [job("1-node", 7, 5), job("report", 8, 1, JobKind.REPORT), job("2-nodes", None, 1)]
    array, report, local = status_of({}, {7: tasks, 8: [state(None, "PENDING")]}, jobs, {}).jobs
    assert array.states == {"running": 1, "completing": 1, "pending": 1, "ended": 2}
    assert (array.time_left_s, array.restarts) == (90.0, 3)
    assert (report.states, report.time_left_s, report.restarts) == ({"pending": 1}, None, None)
    assert local.states == {"without Slurm": 1}


def test_all_trials_done_or_skipped_is_success() -> None:
    plan = [PlanEntry(trial_id="a"), PlanEntry(trial_id="s", rule="world_size", reason="3 ranks")]
    status = run_status(RunFacts(plan=plan, traces={"a": ended("completed")}, now_s=NOW_S))
    assert (standings(status), status.exit_code) == (["completed", "skipped"], 0)
    assert status.trials[1] == TrialStatus("s", Standing.SKIPPED, reason="3 ranks")


def test_a_folder_tells_how_a_trial_ended_or_where_its_ranks_are(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["a", "b", "c", "d"])
    end(run, "a", Status.CRASH, "rank 1 exited with 7", at_s=NOW_S)
    begin(run, "b", NOW_S - 60, [NOW_S - 9, NOW_S - 3])
    run.trial("b").start.write_text(
        Start(trial_id="b", started_at_s=NOW_S, runner="here", job="7_0.2").model_dump_json()
    )
    os.utime(run.trial("b").start, (NOW_S - 61, NOW_S - 61))
    run.trial("c").record.write_text('{"status"')
    traces = read_traces(run, ["a", "b", "c", "d", "nowhere"])
    assert (traces["a"].status, traces["a"].reason, traces["a"].ended_s) == ("crash", "rank 1 exited with 7", NOW_S)
    assert (traces["b"].status, traces["b"].begun_s, traces["b"].changed_s) == (None, NOW_S - 60, NOW_S - 3)
    assert (traces["a"].job, traces["b"].job) == (None, "7_0.2")
    assert [(rank.rank, rank.step_index) for rank in traces["b"].ranks] == [(0, 2), (1, 3)]
    assert traces["c"].status == UNREADABLE
    assert traces["d"] == traces["nowhere"] == TrialTrace()


def test_of_many_ranks_those_silent_for_longest_are_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["a"])
    begin(run, "a", NOW_S, [NOW_S - rank for rank in range(64)])
    trace = read_traces(run, ["a"])["a"]
    assert {rank.rank for rank in trace.ranks} == set(range(48, 64))
    assert trace.changed_s == NOW_S


def test_a_torn_word_of_a_rank_is_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["a"])
    begin(run, "a", NOW_S, [NOW_S - 5])
    run.trial("a").progress(1).write_text('{"rank": 1')
    assert [rank.rank for rank in read_traces(run, ["a"])["a"].ranks] == [0]


def test_a_record_is_read_again_only_when_it_was_written_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["a"])
    end(run, "a", Status.CRASH, at_s=NOW_S)
    first = read_traces(run, ["a"])
    run.trial("a").record.write_text("{}")
    os.utime(run.trial("a").record, (NOW_S, NOW_S))
    assert read_traces(run, ["a"], first)["a"] is first["a"]
    end(run, "a", Status.COMPLETED, at_s=NOW_S + 1)
    assert read_traces(run, ["a"], first)["a"].status == "completed"


def test_hundreds_of_trials_are_looked_at_in_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm here
    trial_ids = [f"t{number}" for number in range(500)]
    run = make_run(tmp_path / "run", trial_ids)
    for trial_id in trial_ids[:200]:
        end(run, trial_id, Status.COMPLETED)
    submit(run, job("1-node", 7, 500), tasks={"1-node": [[trial_id] for trial_id in trial_ids]})
    watcher = Watcher(run)
    began_s = time.process_time()
    _, status = watcher.look()
    assert time.process_time() - began_s < 3.0
    assert status.counts[Standing.COMPLETED] == 200


@pytest.fixture
def slurm_of_23_02(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue that prints a sample, and a sacct that says no."""
    folder = tmp_path / "bin"
    folder.mkdir()
    sample = Path(__file__).parents[1] / "samples" / "squeue_23.02.json"
    for name, line in {"squeue": f"cat {sample}", "sacct": "echo asked >> $0.asked; exit 1"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def submitted_run(path: Path, cluster: str | None = None) -> RunFolder:
    """Twelve trials, one in each task of array 22 of the samples."""
    trial_ids = [f"t{number}" for number in range(12)]
    run = make_run(path, [*trial_ids, "odd"], skipped=["odd"])
    jobs = [job("1-node", 22, 12), job("report", 25, 1, JobKind.REPORT)]
    submit(run, *jobs, tasks={"1-node": [[trial_id] for trial_id in trial_ids]}, cluster=cluster)
    return run


def test_a_look_joins_the_folder_with_the_queue(tmp_path: Path, slurm_of_23_02: Path) -> None:
    run = submitted_run(tmp_path / "run", cluster="watch")
    end(run, "t0", Status.COMPLETED)
    end(run, "t1", Status.CRASH, at_s=SUBMITTED_S + 105)
    begin(run, "t2", SUBMITTED_S + 103)
    begin(run, "t6", SUBMITTED_S + 106)
    begin(run, "t9", SUBMITTED_S + 104)
    _, status = Watcher(run).look()
    assert standings(status) == [
        "completed",
        "failed",
        *["queued"] * 4,
        "running",
        *["queued"] * 2,
        "lost",
        *["queued"] * 2,
        "skipped",
    ]
    assert status.jobs[0].states == {"pending": 5, "running": 4, "completed": 1, "failed": 1, "ended": 1}
    assert status.jobs[0].restarts == 4


def test_accounts_are_asked_once_for_jobs_that_the_queue_has_forgotten(tmp_path: Path, slurm_of_23_02: Path) -> None:
    run = submitted_run(tmp_path / "run", cluster="another")
    watcher = Watcher(run)
    for _ in range(2):
        _, status = watcher.look()
        assert status.counts[Standing.LEFT_OVER] == 12
    assert (slurm_of_23_02 / "sacct.asked").read_text() == "asked\n"


def test_a_folder_without_a_plan_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"plan\.json"):
        Watcher(RunFolder(tmp_path)).look()


def test_the_lock_tells_whether_a_runner_of_this_machine_works_in_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["a"])
    assert runner_here(run, shared=False) is False
    with locked(run):
        assert runner_here(run, shared=False) is True
    assert runner_here(run, shared=False) is False
    with shared(run):
        assert runner_here(run, shared=False) is False
        assert runner_here(run, shared=True) is True


def test_a_lock_that_another_machine_took_last_tells_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["a"])
    (run.path / ".lock").write_text("process 12 on another-machine\n")
    assert runner_here(run, shared=False) is None
    (run.path / ".lock").write_text(f"process 12 on {socket.gethostname()}\n")
    assert runner_here(run, shared=False) is False
