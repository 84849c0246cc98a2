"""Map each trial to its Slurm task and whether it runs: the run's submissions against Slurm's states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Status
from zerobench.launch.slurm.jobs import JobKind, SubmittedJob
from zerobench.launch.slurm.queue import JobStates
from zerobench.launch.slurm.tasks import Stage, TaskState
from zerobench.launch.slurm.watch.traces import TrialTrace

KEPT = {Status.COMPLETED, Status.SKIPPED}
"""Statuses of trials that no job repeats."""
SKEW_S = 30.0
"""Largest difference in seconds between the clocks of the file server and of Slurm's controller."""


@dataclass(frozen=True)
class Holder:
    """The task that runs a trial."""

    job: SubmittedJob
    task_id: int
    state: TaskState | None
    """None if Slurm does not answer, or has forgotten the task."""
    stage: Stage | None
    """None if unknown."""

    @property
    def key(self) -> tuple[str, int]:
        return self.job.name, self.task_id


Index = Mapping[int, Mapping[int, TaskState]]


def index_of(states: JobStates) -> Index:
    """Index states by job and task; a plain job is task 0."""
    return {job_id: {state.task_id or 0: state for state in known} for job_id, known in states.items()}


def holders_of(
    jobs: Sequence[SubmittedJob], tasks: Mapping[str, Sequence[Sequence[str]]], index: Index | None
) -> dict[str, Holder]:
    """Return the task that runs each trial: the last one submitted, unless it is over and an earlier one lives."""
    holders: dict[str, Holder] = {}
    for job in jobs:
        for task_id, trial_ids in enumerate(tasks.get(job.name, ())):
            holder = _holder(job, task_id, index)
            for trial_id in trial_ids:
                earlier = holders.get(trial_id)
                if earlier is None or earlier.stage in {None, Stage.OVER} or holder.stage is not Stage.OVER:
                    holders[trial_id] = holder
    return holders


def _holder(job: SubmittedJob, task_id: int, index: Index | None) -> Holder:
    if job.job_id is None or index is None:
        return Holder(job, task_id, None, None)
    state = index.get(job.job_id, {}).get(task_id)
    # A task that Slurm does not list is over: cancelled before it began it leaves no trace, ended it is soon forgotten.
    return Holder(job, task_id, state, state.stage if state else Stage.OVER)


def newest_begun(traces: Mapping[str, TrialTrace], holders: Mapping[str, Holder]) -> dict[tuple[str, int], float]:
    """Return each task's latest start of a trial: a task runs its trials in sequence."""
    newest: dict[tuple[str, int], float] = {}
    for trial_id, holder in holders.items():
        trace = traces.get(trial_id)
        if trace is not None and trace.begun_s is not None:
            newest[holder.key] = max(trace.begun_s, newest.get(holder.key, 0.0))
    return newest


def is_done_again(trace: TrialTrace, holder: Holder) -> bool:
    """Return True if a trial with a record will be repeated."""
    # A starting task repeats all trials that did not complete.
    if trace.status in KEPT or trace.ended_s is None:
        return False
    if holder.stage is not Stage.ACTIVE:
        return holder.stage is Stage.WAITING
    start_s = holder.state.start_s if holder.state else None
    return trace.ended_s < (holder.job.submitted_at_s if start_s is None else start_s)


def is_in_hand(trace: TrialTrace, holder: Holder, newest: Mapping[tuple[str, int], float]) -> bool:
    """Return True if the task runs the trial now, rather than before a requeue, or later."""
    if trace.begun_s is None or holder.stage is not Stage.ACTIVE or not _began_in_this_start(trace, holder):
        return False
    return holder.job.kind is JobKind.PREDICTIONS or trace.begun_s == newest[holder.key]


def _began_in_this_start(trace: TrialTrace, holder: Holder) -> bool:
    """Return True if the trial was started since its task last started: by the job's name if both sides know it."""
    state = holder.state
    if state is None:
        return True
    if trace.job is not None and state.restart_count is not None:
        start = "" if state.restart_count == 0 else f".{state.restart_count + 1}"
        return trace.job == f"{holder.job.job_id}_{holder.task_id}{start}"
    return trace.begun_s is None or state.start_s is None or trace.begun_s >= state.start_s - SKEW_S
