"""What squeue and sacct print, in the layouts of all versions, and when they print nothing of use."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.at_least_one import at_least_one
from tests.tools.known import known
from zerobench.launch.slurm.queue import ended_jobs, job_states, sacct_lines, squeue_columns, squeue_json
from zerobench.launch.slurm.tasks import Stage, TaskState, array_task_ids

SAMPLES = Path(__file__).parent / "samples"
LAYOUTS = ("22.05", "23.02", "24.05")
ARRAY, TWO_NODES, PREDICTIONS, REPORT, ENDING = 22, 23, 24, 25, 38
JOBS = (ARRAY, TWO_NODES, PREDICTIONS, REPORT, ENDING)
Program = Callable[[str, str], Path]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a program of a name, a shell script, before all others on PATH; `$HERE` is a folder to write to."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(tmp_path))

    def make(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return tmp_path

    return make


def read(layout: str) -> dict[int, list[TaskState]]:
    return known(squeue_json((SAMPLES / f"squeue_{layout}.json").read_text(), JOBS))


def by_task(states: list[TaskState]) -> dict[int | None, TaskState]:
    return {state.task_id: state for state in states}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pending_array_is_a_state_for_each_of_its_tasks_in_every_layout(layout: str) -> None:
    tasks = by_task(read(layout)[ARRAY])
    assert {task: state.stage for task, state in tasks.items()} == {
        0: Stage.OVER,
        1: Stage.OVER,
        **dict.fromkeys([2, 3, 4, 5, 11], Stage.WAITING),
        **dict.fromkeys([6, 7, 8, 10], Stage.ACTIVE),
    }
    assert (tasks[1].state, tasks[1].reason) == ("FAILED", "NonZeroExitCode")
    assert (tasks[11].state, tasks[11].reason, tasks[11].nodes) == ("PENDING", "JobArrayTaskLimit", None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_running_task_tells_its_nodes_and_the_time_that_it_has_left(layout: str) -> None:
    task = by_task(read(layout)[ARRAY])[10]
    assert (task.num_nodes, task.nodes, task.preempt_s) == (1, "n1", None)
    assert task.start_s is not None
    assert task.time_left_s(task.start_s + 60) == 1740.0
    assert task.time_left_s(task.start_s + 10_000) == 0.0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_requeued_task_tells_how_often(layout: str) -> None:
    tasks = by_task(read(layout)[ARRAY])
    assert [tasks[task].restart_count for task in (2, 5, 6, 11)] == [1, 1, 0, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_preempted_job_that_may_not_be_requeued_is_over(layout: str) -> None:
    (state,) = read(layout)[TWO_NODES]
    assert (state.state, state.stage, state.preempt_s) == ("PREEMPTED", Stage.OVER, 1795291205.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_job_that_is_ending_still_has_its_nodes(layout: str) -> None:
    (state,) = read(layout)[ENDING]
    assert (state.state, state.stage) == ("COMPLETING", Stage.ACTIVE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_job_that_is_no_array_has_no_task(layout: str) -> None:
    (state,) = read(layout)[REPORT]
    assert (state.task_id, state.stage, state.reason) == (None, Stage.WAITING, "Dependency")


def test_tasks_whose_node_went_down_are_over() -> None:
    states = known(squeue_json((SAMPLES / "squeue_22.05_node_fail.json").read_text(), [39]))
    assert [(s.task_id, s.state, s.reason, s.stage) for s in states[39]] == [
        (task, "NODE_FAIL", "NodeDown", Stage.OVER) for task in (5, 6)
    ]


def test_columns_tell_the_same_where_squeue_has_no_json() -> None:
    states = known(squeue_columns((SAMPLES / "squeue_22.05_columns.txt").read_text(), [42, 43]))
    tasks = by_task(states[42])
    assert {task: state.stage for task, state in tasks.items()} == {
        0: Stage.OVER,
        1: Stage.OVER,
        **dict.fromkeys([2, 3, 4, 5], Stage.ACTIVE),
        **dict.fromkeys([6, 7, 8, 10, 11], Stage.WAITING),
    }
    assert (tasks[2].nodes, tasks[2].num_nodes, tasks[2].restart_count) == ("n1", 1, None)
    assert tasks[2].time_left_s(1795291383.0) == 1800.0
    assert [(s.task_id, s.reason) for s in states[43]] == [(None, "Dependency")]


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("3", [3]),
        ("3-9%2", [3, 4, 5, 6, 7, 8, 9]),
        ("1,5-6,8-11", [1, 5, 6, 8, 9, 10, 11]),
        ("0-20:5%1", [0, 5, 10, 15, 20]),
        ("", []),
        ("0,2,...", [0, 2]),
        ("9-3", []),
    ],
)
def test_slurms_lists_of_tasks_are_read_whole(text: str, tasks: list[int]) -> None:
    assert list(array_task_ids(text)) == tasks


@pytest.mark.parametrize(
    ("states", "stage"),
    [
        (("RUNNING",), Stage.ACTIVE),
        (("RUNNING", "CONFIGURING"), Stage.ACTIVE),
        (("COMPLETED", "COMPLETING"), Stage.ACTIVE),
        (("PENDING", "REQUEUED"), Stage.WAITING),
        (("PREEMPTED", "REQUEUED"), Stage.WAITING),
        (("REQUEUE_HOLD",), Stage.WAITING),
        (("OUT_OF_MEMORY",), Stage.OVER),
        (("A_WORD_OF_TOMORROW",), Stage.ACTIVE),
        ((), Stage.ACTIVE),
    ],
)
def test_only_what_cannot_begin_again_is_over(states: tuple[str, ...], stage: Stage) -> None:
    assert TaskState(None, states).stage is stage


def test_a_job_that_slurm_has_forgotten_has_no_states() -> None:
    assert squeue_json((SAMPLES / "squeue_24.05.json").read_text(), [999]) == {999: []}


def test_jobs_of_another_cluster_with_the_same_numbers_do_not_count() -> None:
    text = (SAMPLES / "squeue_24.05.json").read_text()
    assert squeue_json(text, [REPORT], cluster="another") == {REPORT: []}
    here = known(squeue_json(text, [REPORT], cluster="watch"))
    assert len(here[REPORT]) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"jobs": 3}', '{"jobs": [], "errors": [{"error": "no"}]}'])
def test_what_is_no_answer_is_none(text: str) -> None:
    assert squeue_json(text, [1]) is None


@pytest.mark.parametrize("odd", [None, True, "x", -1, float("inf"), float("nan"), [{}], {}, {"set": True}, "9" * 5000])
def test_a_field_that_is_not_as_expected_breaks_nothing(odd: Any) -> None:
    document = json.loads((SAMPLES / "squeue_24.05.json").read_text())
    job = document["jobs"][0]
    for name in at_least_one(job):
        text = json.dumps({**document, "jobs": [job, {**job, name: odd}]})
        states = known(squeue_json(text, JOBS, cluster="watch"))
        assert states[ARRAY][0].state == "COMPLETED"


def test_without_slurm_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert job_states([1]) is None
    assert ended_jobs([1]) is None


def test_nobody_is_asked_about_no_jobs(program: Program) -> None:
    here = program("squeue", "touch $HERE/asked")
    assert job_states([]) == {}
    assert not (here / "asked").exists()


def test_a_silent_slurm_is_waited_for_once_and_no_longer_than_told(program: Program) -> None:
    here = program("squeue", "echo asked >> $HERE/asked; sleep 60")
    began = time.monotonic()
    assert job_states([1], timeout_s=0.5) is None
    assert time.monotonic() - began < 30.0
    assert (here / "asked").read_text() == "asked\n"


def test_a_squeue_built_without_json_is_asked_for_columns(program: Program) -> None:
    columns = SAMPLES / "squeue_22.05_columns.txt"
    program("squeue", f'case "$*" in *--json*) echo "unrecognized option" >&2; exit 1;; esac; cat {columns}')
    states = known(job_states([42, 77]))
    assert len(states[42]) == 11
    assert states[77] == []


def test_a_squeue_that_refuses_everything_is_no_answer(program: Program) -> None:
    program("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert job_states([1]) is None


def test_a_single_job_is_named_twice_because_squeue_fails_for_one_that_it_has_forgotten(program: Program) -> None:
    here = program("squeue", 'echo "$*" > $HERE/asked; echo \'{"jobs": []}\'')
    assert job_states([7]) == {7: []}
    assert "--jobs=7,7" in (here / "asked").read_text()
    assert "--states=all" in (here / "asked").read_text()


def test_accounts_tell_how_each_task_ended_and_how_often_it_was_begun_again() -> None:
    states = known(sacct_lines((SAMPLES / "sacct_22.05.txt").read_text(), [1, 6, 9]))
    assert {(s.task_id, s.state, s.restart_count, s.nodes) for s in states[1]} == {
        (0, "COMPLETED", 0, "n1"),
        (1, "FAILED", 0, "n1"),
        (2, "CANCELLED", 0, "n1"),
        (3, "COMPLETED", 1, "n1"),
        (4, "COMPLETED", 0, "n1"),
        (5, "COMPLETED", 0, "n1"),
        (6, "COMPLETED", 0, "n2"),
    }
    (report,) = states[6]
    assert (report.task_id, report.state, report.end_s) == (None, "COMPLETED", 1795292442.0)
    assert states[9] == []


def test_accounts_of_a_task_that_was_begun_again_or_waits_to_be_are_no_end() -> None:
    states = sacct_lines(
        "22_0|NODE_FAIL|10|20|1|n1\n"
        "22_0|PENDING|Unknown|Unknown|1|None assigned\n"
        "22_1|REQUEUED|10|20|1|n1\n"
        "22_1|RUNNING|30|Unknown|1|n1\n"
        "22_2|PREEMPTED|10|20|1|n1\n"
        "22_2|CANCELLED by 1000|None|25|1|None assigned\n"
        "22_[4-9%2]|PENDING|Unknown|Unknown|1|None assigned\n"
        "23|TIMEOUT|10|70|2|n[1-2]\n",
        [22, 23],
    )
    assert states == {
        22: [TaskState(2, ("CANCELLED",), num_nodes=1, restart_count=1, end_s=25.0)],
        23: [TaskState(None, ("TIMEOUT",), num_nodes=2, nodes="n[1-2]", restart_count=0, start_s=10.0, end_s=70.0)],
    }


def test_an_answer_of_sacct_in_other_fields_is_none() -> None:
    assert sacct_lines("22|COMPLETED\n", [22]) is None


def test_a_cluster_without_accounts_says_nothing(program: Program) -> None:
    program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert ended_jobs([1]) is None
