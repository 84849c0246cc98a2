"""How a run stands, joined from its folder and from what Slurm says: pure, so that each case can be tried.

The folder is the truth about trials that ended; Slurm alone knows whether one without a record still runs, waits, or
will never end. Without Slurm's word nothing is called lost.
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
    """Where a trial stands."""

    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    RUNNING = "running"
    QUEUED = "queued"
    """Its job waits, or runs and has other trials to do first."""
    BEGUN = "begun"
    """Begun and without a record; whether it still runs is not known."""
    SUBMITTED = "submitted"
    """In a job, and not begun; whether the job still waits is not known."""
    LOST = "lost"
    """Begun and without a record, and what ran it is over."""
    LEFT_OVER = "left over"
    """Never begun, and its job is over."""
    NOT_STARTED = "not started"
    """Never begun, and in no job."""


ENDED = "ended"
UNKNOWN = "unknown"
LOCAL = "without Slurm"
"""In place of a task's state: Slurm has forgotten it, does not answer, or never had it."""

GOING = {Standing.RUNNING, Standing.QUEUED, Standing.BEGUN, Standing.SUBMITTED}
"""What may still end by itself."""
UNDONE = {Standing.LOST, Standing.LEFT_OVER, Standing.NOT_STARTED}
"""What nobody will do unless told to."""
_KEPT = {Status.COMPLETED: Standing.COMPLETED, Status.SKIPPED: Standing.SKIPPED}


@dataclass(frozen=True)
class TrialStatus:
    """Where one trial stands, and all that is known of it."""

    trial_id: str
    standing: Standing
    trace: TrialTrace = _NO_TRACE
    reason: str | None = None
    """Why it failed or was skipped; for queued trials Slurm's word for why the job waits."""
    job: SubmittedJob | None = None
    """The job that does it, the last one where there were several."""
    task_id: int | None = None
    silence_s: float | None = None
    """For how long no rank of a running trial has said anything."""

    @property
    def ranks(self) -> tuple[Progress, ...]:
        """The last word of its ranks."""
        return self.trace.ranks


@dataclass(frozen=True)
class JobStatus:
    """Where the tasks of one array stand."""

    job: SubmittedJob
    states: Counter[str]
    """Tasks by Slurm's state in small letters, or by one of ENDED, UNKNOWN and LOCAL."""
    time_left_s: float | None
    """Seconds until the time limit of the running task that began last."""
    restarts: int | None
    """Requeues of its tasks together; None where Slurm does not say."""


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands."""

    trials: Sequence[TrialStatus]
    """In the plan's order."""
    jobs: Sequence[JobStatus]
    """Every job ever submitted for it, in that order."""
    slurm_answers: bool

    @property
    def counts(self) -> Counter[Standing]:
        """How many trials stand where."""
        return Counter(trial.standing for trial in self.trials)

    @property
    def is_going(self) -> bool:
        """Whether it still goes on without anybody's help."""
        return any(trial.standing in GOING for trial in self.trials)

    @property
    def exit_code(self) -> int:
        """0 where all trials completed or were skipped, 1 where some did not or never will, 3 while it goes on."""
        if self.is_going:
            return 3
        return 0 if all(trial.standing in _KEPT.values() for trial in self.trials) else 1


@dataclass(frozen=True)
class RunFacts:
    """All that is known of a run; `run_status` joins it."""

    plan: Sequence[PlanEntry]
    traces: Mapping[str, TrialTrace]
    """Of every trial that the plan does not skip."""
    now_s: float
    jobs: Sequence[SubmittedJob] = ()
    tasks: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """By a job's name, the trials of each task."""
    states: JobStates | None = None
    """What Slurm says; None where it does not answer."""
    runner_here: bool | None = False
    """Whether a zerobench outside of Slurm works in the run; None where that cannot be told from here."""


def run_status(known: RunFacts) -> RunStatus:
    """Where the run and each of its trials stand."""
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
