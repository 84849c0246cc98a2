"""Reasons for which a job lost its nodes, asked of Slurm at the time or later.

Slurm's behaviour (22.05 to 25.05; src/slurmd/slurmd/req.c, _rpc_terminate_job; job_mgr.c): a job that is cancelled,
preempted without grace, or has a node down gets SIGTERM in its steps and its batch script, and SIGKILL after KillWait;
one preempted with grace gets SIGTERM in its steps alone at first; one near its time limit gets the signal that
`--signal=B:` names in its batch script. No signal gives the reason, but the states of the job and its nodes do.
"""

import signal
import time
from dataclasses import dataclass

from zerobench.common.vocabulary import Status
from zerobench.launch.run.executor import Interruption, silent_end
from zerobench.launch.run.stop import Stop
from zerobench.launch.slurm.job.allocation import Allocation, boot_times, down_nodes, parse_job
from zerobench.launch.slurm.queue import ended_jobs, job_states
from zerobench.launch.slurm.tasks import Stage, TaskState
from zerobench.records.records import Start

TIME_SIGNAL = signal.SIGUSR1
"""Signal the batch scripts request before the time limit."""

_PATIENCE_S = 10.0
_ENDS = {
    "PREEMPTED": Status.PREEMPTED,
    "NODE_FAIL": Status.NODE_FAILURE,
    "BOOT_FAIL": Status.NODE_FAILURE,
    "TIMEOUT": Status.TIMEOUT,
    "DEADLINE": Status.TIMEOUT,
    "CANCELLED": Status.CANCELLED,
    "OUT_OF_MEMORY": Status.OUT_OF_HOST_MEMORY,
}
_WORDS = {
    Status.PREEMPTED: "a job of higher priority took the nodes of job {job}",
    Status.NODE_FAILURE: "job {job} lost a node",
    Status.TIMEOUT: "job {job} reached its time limit before the trial was done",
    Status.CANCELLED: "job {job} was cancelled",
    Status.OUT_OF_HOST_MEMORY: "Slurm killed job {job} (out of host memory)",
    Status.INTERRUPTED: "job {job} ended before the trial; Slurm gives no reason",
}
_REQUEUED = "job {job} was requeued"


def taken(allocation: Allocation, stop: Stop) -> Interruption | None:
    """Return what takes our nodes now; None if nothing does."""
    state = allocation.state()
    # Preemption is noticed without a signal too: with grace, the ranks get it first. And it may send the signal of the
    # time limit (PreemptParameters=send_user_signal, slurm.conf(5)): Slurm's state takes precedence.
    if state is not None and state.preempt_s is not None:
        return _interruption(Status.PREEMPTED, allocation.job, f"Slurm says: preempt time {state.preempt_s:.0f}")
    if stop.signal is TIME_SIGNAL:
        return _interruption(Status.TIMEOUT, allocation.job, f"Slurm sent {TIME_SIGNAL.name} before the limit")
    if stop.signal is not signal.SIGTERM:
        return None
    # Why we got SIGTERM, from the nodes' states, the clock, and whether we are to start again.
    down = ", ".join(down_nodes(allocation.nodes))
    if down:
        return _interruption(Status.NODE_FAILURE, allocation.job, f"Slurm says: down: {down}", down)
    if allocation.limit_is_over(time.time()):
        return _interruption(Status.TIMEOUT, allocation.job, "SIGTERM at the time limit")
    if state is None:
        return _interruption(Status.INTERRUPTED, allocation.job, "SIGTERM, and Slurm did not answer")
    if (state.restart_count or 0) > allocation.restarts:
        return Interruption(Status.INTERRUPTED, _REQUEUED.format(job=allocation.job), "Slurm says: one more restart")
    return _interruption(
        Status.CANCELLED, allocation.job, f"SIGTERM; Slurm says: {state.state.lower()}, nodes up, limit ahead"
    )


def lost(start: Start | None) -> Interruption:
    """Return what ended a trial started in a job whose runner left no record of it."""
    if start is None or start.job is None:
        return silent_end(start)
    later = _look_later(start.job)
    if later.state is not None and later.is_over:
        ended = next((_ENDS[word] for word in later.state.states if word in _ENDS), None)
        if ended is not None:
            return _interruption(ended, start.job, f"Slurm says: {later.state.state}")
    failed = _failed_nodes(start)
    if failed is not None:
        return failed
    if later.is_requeued:
        return Interruption(Status.INTERRUPTED, _REQUEUED.format(job=start.job), "Slurm says: it was started again")
    return _interruption(Status.INTERRUPTED, start.job, later.word)


def _failed_nodes(start: Start) -> Interruption | None:
    """Return a node failure if nodes of the trial are down or were booted after its start."""
    job = start.job or ""
    down = ", ".join(down_nodes(start.nodes, _PATIENCE_S))
    if down:
        return _interruption(Status.NODE_FAILURE, job, f"Slurm says: down: {down}", down)
    times = boot_times(start.nodes, _PATIENCE_S)
    booted = ", ".join(node for node, at_s in times.items() if at_s > start.started_at_s)
    return _interruption(Status.NODE_FAILURE, job, f"Slurm says: started since: {booted}", booted) if booted else None


def is_alive(start: Start | None) -> bool:
    """Return True if the job that started a trial runs, will run again, or may, since Slurm does not answer."""
    if start is None or start.job is None:
        return False
    later = _look_later(start.job)
    return not later.answers or (later.state is not None and later.state.stage is not Stage.OVER)


@dataclass(frozen=True)
class _JobStanding:
    """Present state of the job in a record."""

    answers: bool = True
    """True if Slurm answers."""
    state: TaskState | None = None
    """None if Slurm has forgotten the job."""
    restarts: int = 0
    """Number of requeues at the trial's start."""

    @property
    def is_requeued(self) -> bool:
        """True if it has been started again since."""
        return self.state is not None and (self.state.restart_count or 0) > self.restarts

    @property
    def is_over(self) -> bool:
        """True if the recorded start was the last one and has ended."""
        return self.state is not None and self.state.stage is Stage.OVER and not self.is_requeued

    @property
    def word(self) -> str:
        """Slurm's answer as evidence."""
        if not self.answers:
            return "Slurm does not answer"
        return "Slurm no longer knows it" if self.state is None else f"Slurm says: {self.state.state}"


def _look_later(job: str) -> _JobStanding:
    try:
        job_id, task_id, restarts = parse_job(job)
    except ValueError:
        return _JobStanding()
    states = job_states([job_id], _PATIENCE_S)
    if states is None:
        return _JobStanding(answers=False)
    tasks = states[job_id] or (ended_jobs([job_id], _PATIENCE_S) or {}).get(job_id, [])
    state = next((task for task in tasks if task.task_id == task_id), None)
    return _JobStanding(state=state, restarts=restarts)


def _interruption(status: Status, job: str, evidence: str, which: str | None = None) -> Interruption:
    words = _WORDS[status].format(job=job)
    return Interruption(status, f"{words}: {which}" if which else words, evidence)
