"""Status of a run, joined from its folder and Slurm's states: pure, so that each case can be tested.

The folder is the truth about ended trials; Slurm alone knows whether one without a record still runs, waits, or will
never end. Without Slurm's answer nothing is called lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from zerobench.common.vocabulary import Status
from zerobench.launch.slurm.jobs import SubmittedJob
from zerobench.launch.slurm.queue import JobStates
from zerobench.launch.slurm.tasks import Stage
from zerobench.launch.slurm.watch.holders import (
    Holder,
    Index,
    holders_of,
    index_of,
    is_done_again,
    is_in_hand,
    newest_begun,
)
from zerobench.launch.slurm.watch.traces import TrialTrace
from zerobench.records.progress import Progress
from zerobench.records.store import PlanEntry

_NO_TRACE = TrialTrace()


class Standing(StrEnum):
    """State of a trial."""

    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    RUNNING = "running"
    QUEUED = "queued"
    """Its job waits, or runs and has other trials to run first."""
    BEGUN = "begun"
    """Started, without a record; it may still run."""
    SUBMITTED = "submitted"
    """In a job and not started; the job may still wait."""
    LOST = "lost"
    """Started, without a record, and its runner is over."""
    LEFT_OVER = "left over"
    """Never started, and its job is over."""
    NOT_STARTED = "not started"
    """Never started, and in no job."""


ENDED = "ended"
UNKNOWN = "unknown"
LOCAL = "without Slurm"
"""Substitutes for a task's state: Slurm has forgotten it, does not answer, or never had it."""

GOING = {Standing.RUNNING, Standing.QUEUED, Standing.BEGUN, Standing.SUBMITTED}
"""Standings that may still end by themselves."""
UNDONE = {Standing.LOST, Standing.LEFT_OVER, Standing.NOT_STARTED}
"""Standings that need the user."""
_KEPT = {Status.COMPLETED: Standing.COMPLETED, Status.SKIPPED: Standing.SKIPPED}


@dataclass(frozen=True)
class TrialStatus:
    """State of one trial, with its evidence."""

    trial_id: str
    standing: Standing
    trace: TrialTrace = _NO_TRACE
    reason: str | None = None
    """Reason for failing or being skipped; for queued trials Slurm's reason for the job's wait."""
    job: SubmittedJob | None = None
    """The job that runs it, the last one if there were several."""
    task_id: int | None = None
    silence_s: float | None = None
    """Seconds since any rank of a running trial reported."""

    @property
    def ranks(self) -> tuple[Progress, ...]:
        """The last progress of its ranks."""
        return self.trace.ranks


@dataclass(frozen=True)
class JobStatus:
    """State of one array's tasks."""

    job: SubmittedJob
    states: Counter[str]
    """Number of tasks by Slurm's state in lower case, or by ENDED, UNKNOWN or LOCAL."""
    time_left_s: float | None
    """Seconds until the time limit of the running task that began last."""
    restarts: int | None
    """Requeues of all its tasks; None if Slurm does not report them."""


@dataclass(frozen=True)
class RunStatus:
    """State of a run."""

    trials: Sequence[TrialStatus]
    """In the plan's order."""
    jobs: Sequence[JobStatus]
    """Every job ever submitted for it, in that order."""
    slurm_answers: bool

    @property
    def counts(self) -> Counter[Standing]:
        """Number of trials by standing."""
        return Counter(trial.standing for trial in self.trials)

    @property
    def is_going(self) -> bool:
        """True if it still goes on without the user."""
        return any(trial.standing in GOING for trial in self.trials)

    @property
    def exit_code(self) -> int:
        """0 if all trials completed or were skipped, 1 if some did not or never will, 3 while it goes on."""
        if self.is_going:
            return 3
        return 0 if all(trial.standing in _KEPT.values() for trial in self.trials) else 1


@dataclass(frozen=True)
class RunFacts:
    """All facts about a run; input of `run_status`."""

    plan: Sequence[PlanEntry]
    traces: Mapping[str, TrialTrace]
    """For every trial that the plan does not skip."""
    now_s: float
    jobs: Sequence[SubmittedJob] = ()
    tasks: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Trials of each task, by the job's name."""
    states: JobStates | None = None
    """Slurm's states; None if it does not answer."""
    runner_here: bool | None = False
    """True if a zerobench outside Slurm works in the run; None if that cannot be told from here."""


def run_status(known: RunFacts) -> RunStatus:
    """Return the state of the run and of each of its trials."""
    index = None if known.states is None else index_of(known.states)
    holders = holders_of(known.jobs, known.tasks, index)
    newest = newest_begun(known.traces, holders)
    trials = [_trial(entry, known, holders.get(entry.trial_id), newest) for entry in known.plan]
    jobs = [_job(job, index, known) for job in known.jobs]
    return RunStatus(trials, jobs, known.states is not None)


def _trial(
    entry: PlanEntry, known: RunFacts, holder: Holder | None, newest: Mapping[tuple[str, int], float]
) -> TrialStatus:
    if entry.rule is not None or entry.reason is not None:
        return TrialStatus(entry.trial_id, Standing.SKIPPED, reason=entry.reason)
    trace = known.traces.get(entry.trial_id, _NO_TRACE)
    standing = _standing(trace, known, holder, newest)
    waits_for = holder.state.reason if holder and holder.state else None
    since_s = trace.changed_s or trace.begun_s
    is_open = standing in {Standing.RUNNING, Standing.BEGUN}
    return TrialStatus(
        entry.trial_id,
        standing,
        trace,
        reason=waits_for if standing is Standing.QUEUED else trace.reason,
        job=holder.job if holder else None,
        task_id=holder.task_id if holder else None,
        silence_s=max(0.0, known.now_s - since_s) if is_open and since_s is not None else None,
    )


def _standing(
    trace: TrialTrace, known: RunFacts, holder: Holder | None, newest: Mapping[tuple[str, int], float]
) -> Standing:
    if trace.status is not None and not (holder and is_done_again(trace, holder)):
        return next((standing for status, standing in _KEPT.items() if status == trace.status), Standing.FAILED)
    is_begun = trace.begun_s is not None
    if holder is None or holder.job.job_id is None or (holder.stage is Stage.OVER and known.runner_here):
        return _outside_slurm(known.runner_here, is_begun=is_begun)
    if holder.stage is None:
        return Standing.BEGUN if is_begun else Standing.SUBMITTED
    if holder.stage is Stage.OVER:
        return Standing.LOST if is_begun else Standing.LEFT_OVER
    return Standing.RUNNING if is_in_hand(trace, holder, newest) else Standing.QUEUED


def _outside_slurm(runner_here: bool | None, *, is_begun: bool) -> Standing:
    if runner_here is None:
        return Standing.BEGUN if is_begun else Standing.SUBMITTED
    if runner_here:
        return Standing.RUNNING if is_begun else Standing.QUEUED
    return Standing.LOST if is_begun else Standing.NOT_STARTED


def _job(job: SubmittedJob, index: Index | None, known: RunFacts) -> JobStatus:
    if job.job_id is None or index is None:
        word = UNKNOWN if job.job_id is not None else LOCAL
        return JobStatus(job, Counter({word: job.num_tasks}), None, None)
    tasks = index.get(job.job_id, {})
    states = Counter(tasks[task].state.lower() if task in tasks else ENDED for task in range(job.num_tasks))
    left = [left_s for task in tasks.values() if (left_s := task.time_left_s(known.now_s)) is not None]
    restarts = [task.restart_count for task in tasks.values() if task.restart_count is not None]
    return JobStatus(job, states, max(left, default=None), sum(restarts) if restarts else None)
