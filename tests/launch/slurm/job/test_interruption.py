"""Why Slurm took a job's nodes: told from the states that it gives, in the job and afterwards."""

import json
import signal
import time

import pytest

from tests.launch.slurm.standins import Standins
from tests.tools.known import known
from zerobench.common.vocabulary import Status
from zerobench.launch.run.executor import Interruption
from zerobench.launch.run.stop import Stop
from zerobench.launch.slurm.job.allocation import Allocation
from zerobench.launch.slurm.job.interruption import is_alive, lost, taken
from zerobench.records.records import Start

ALLOCATION = Allocation(41, 3, 0, ("n1", "n2"), 64, 8, "host")
STARTED_S = 1_795_252_000.0
START = Start(trial_id="a", started_at_s=STARTED_S, runner="process 7 on n1", nodes=["n1", "n2"], job="41_3")


def says(slurm: Standins, state: str, **fields: object) -> None:
    """Let squeue tell of task 3 of job 41, after another of its tasks."""
    other = {"job_id": 44, "array_job_id": 41, "array_task_id": 2, "job_state": "SUSPENDED", "restart_cnt": 0}
    job = {"job_id": 45, "array_job_id": 41, "array_task_id": 3, "job_state": state, "restart_cnt": 0, **fields}
    slurm.answer("squeue", f"cat <<'END'\n{json.dumps({'jobs': [other, job]})}\nEND")


def nodes_are(slurm: Standins, *states: str, booted_s: float = STARTED_S - 60) -> None:
    lines = [f"n{number} {state}" for number, state in enumerate(states, 1)]
    slurm.answer("sinfo", "\n".join(f"echo '{line}'" for line in lines))
    slurm.answer("scontrol", f"echo 'NodeName=n1 State=IDLE BootTime={booted_s:.0f} LastBusyTime=1'")


def stopped_by(number: signal.Signals | None) -> Stop:
    stop = Stop()
    if number is not None:
        stop.ask(number)
    return stop


def test_a_trial_that_failed_by_itself_was_not_interrupted(slurm: Standins) -> None:
    says(slurm, "RUNNING")
    assert taken(ALLOCATION, stopped_by(None)) is None


def test_the_signal_before_the_limit_means_the_time_limit(slurm: Standins) -> None:
    says(slurm, "RUNNING")
    told = taken(ALLOCATION, stopped_by(signal.SIGUSR1))
    assert told == Interruption(
        Status.TIMEOUT,
        "job 41_3 reached its time limit before the trial was done",
        "Slurm sent SIGUSR1 before the limit",
    )


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGUSR1])
def test_a_preempted_job_is_known_by_slurms_word_whatever_signal_came(
    slurm: Standins, number: signal.Signals | None
) -> None:
    says(slurm, "RUNNING", preempt_time=1_795_252_100)
    told = known(taken(ALLOCATION, stopped_by(number)))
    assert told.status is Status.PREEMPTED
    assert told.message == "a job of higher priority took the nodes of job 41_3"


def test_a_node_that_is_down_is_named(slurm: Standins) -> None:
    says(slurm, "COMPLETING", restart_cnt=1)
    nodes_are(slurm, "idle", "down*")
    told = taken(ALLOCATION, stopped_by(signal.SIGTERM))
    assert told == Interruption(Status.NODE_FAILURE, "job 41_3 lost a node: n2", "Slurm says: down: n2")


@pytest.mark.parametrize(
    ("state", "fields", "status"),
    [
        ("COMPLETING", {"restart_cnt": 1}, Status.INTERRUPTED),
        ("COMPLETING", {}, Status.CANCELLED),
        ("RUNNING", {}, Status.CANCELLED),
    ],
)
def test_with_all_nodes_up_a_restart_tells_a_requeue_from_a_cancellation(
    slurm: Standins, state: str, fields: dict[str, object], status: Status
) -> None:
    says(slurm, state, **fields)
    nodes_are(slurm, "idle", "idle")
    told = known(taken(ALLOCATION, stopped_by(signal.SIGTERM)))
    assert told.status is status


def test_a_sigterm_at_the_time_limit_is_the_time_limit(slurm: Standins) -> None:
    says(slurm, "RUNNING", end_time=int(time.time()) - 1)
    nodes_are(slurm, "idle", "idle")
    allocation = Allocation(41, 3, 0, ("n1", "n2"), 64, 8, "host")
    told = known(taken(allocation, stopped_by(signal.SIGTERM)))
    assert told.status is Status.TIMEOUT


def test_where_slurm_does_not_answer_nothing_is_made_up(slurm: Standins) -> None:
    for program in ("squeue", "sinfo"):
        slurm.answer(program, "exit 1")
    told = known(taken(Allocation(41, 3, 0, ("n1",), 64, 8, "host"), stopped_by(signal.SIGTERM)))
    assert (told.status, told.evidence) == (Status.INTERRUPTED, "SIGTERM, and Slurm did not answer")


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("PREEMPTED", Status.PREEMPTED),
        ("NODE_FAIL", Status.NODE_FAILURE),
        ("TIMEOUT", Status.TIMEOUT),
        ("CANCELLED", Status.CANCELLED),
        ("OUT_OF_MEMORY", Status.OUT_OF_HOST_MEMORY),
        ("FAILED", Status.INTERRUPTED),
    ],
)
def test_a_lost_trial_ended_as_its_job_did(slurm: Standins, state: str, status: Status) -> None:
    says(slurm, state)
    nodes_are(slurm, "idle", "idle")
    told = lost(START)
    assert (told.status, told.evidence) == (status, f"Slurm says: {state}")


def test_a_lost_trial_of_a_job_that_was_started_again_was_requeued_whatever_the_job_did_later(slurm: Standins) -> None:
    says(slurm, "CANCELLED", restart_cnt=1)
    nodes_are(slurm, "idle", "idle")
    assert lost(START) == Interruption(Status.INTERRUPTED, "job 41_3 was requeued", "Slurm says: it was started again")


def test_a_lost_trial_whose_node_is_down_lost_its_node(slurm: Standins) -> None:
    says(slurm, "PENDING", restart_cnt=1)
    nodes_are(slurm, "down*", "idle")
    assert lost(START).message == "job 41_3 lost a node: n1"


def test_a_lost_trial_whose_node_was_started_since_lost_its_node(slurm: Standins) -> None:
    says(slurm, "RUNNING", restart_cnt=1)
    nodes_are(slurm, "allocated", "allocated", booted_s=STARTED_S + 60)
    assert lost(START) == Interruption(Status.NODE_FAILURE, "job 41_3 lost a node: n1", "Slurm says: started since: n1")


def test_what_slurm_has_forgotten_is_told_by_accounting(slurm: Standins) -> None:
    slurm.answer("sacct", "echo '41_3|CANCELLED by 1000|1795252000|1795252100|2|n[1-2]'")
    nodes_are(slurm, "idle", "idle")
    assert lost(START).status is Status.CANCELLED


def test_what_nobody_knows_any_more_is_an_interruption(slurm: Standins) -> None:
    slurm.answer("sacct", "exit 1")
    nodes_are(slurm, "idle", "idle")
    told = lost(START)
    assert (told.status, told.evidence) == (Status.INTERRUPTED, "Slurm no longer knows it")


def test_without_slurms_answer_a_lost_trial_is_an_interruption_and_its_job_may_live(slurm: Standins) -> None:
    slurm.answer("squeue", "exit 1")
    nodes_are(slurm, "idle", "idle")
    told = lost(START)
    assert (told.status, told.evidence) == (Status.INTERRUPTED, "Slurm does not answer")
    assert is_alive(START)


def test_a_job_of_another_scheduler_is_none_that_slurm_knows(slurm: Standins) -> None:
    nodes_are(slurm, "idle", "idle")
    other = START.model_copy(update={"job": "77.pbs.server"})
    assert lost(other).status is Status.INTERRUPTED
    assert not is_alive(other)


def test_a_trial_of_no_job_is_not_asked_for(slurm: Standins) -> None:
    told = lost(START.model_copy(update={"job": None}))
    assert told.message == "its runner (process 7 on n1) ended first, without a message"
    assert lost(None).message == "its runner ended first, without a message"
    assert slurm.calls("squeue") == []


@pytest.mark.parametrize(
    ("state", "lives"),
    [("RUNNING", True), ("PENDING", True), ("COMPLETING", True), ("CANCELLED", False), ("COMPLETED", False)],
)
def test_a_trial_lives_as_long_as_its_job_does_or_comes_again(slurm: Standins, state: str, *, lives: bool) -> None:
    says(slurm, state, restart_cnt=1)
    assert is_alive(START) is lives
    assert not is_alive(None)
