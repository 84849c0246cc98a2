"""Group a run's trials into job arrays: the trials of each task, the tasks of each array.

Trials on the same number of nodes form a group, since a job's nodes are allocated as a whole; predictions are a group
of their own, on one node without GPUs. Within a group trials are sorted by estimated work, so that short ones share a
task and a task's time limit suits all of its trials. A task holds as many as fit in an allocation of some two hours
even if each used all of its `timeout_s`: starting a job takes minutes on many clusters, most trials take seconds, and a
shorter time limit is scheduled sooner. It holds more if Slurm would not accept so many tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zerobench.common.errors import UserError
from zerobench.common.grouped import grouped
from zerobench.config.models.parameters import num_parameters
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.slurm.jobs import JobKind
from zerobench.launch.slurm.submit.limits import Limits

START_UP_S = 300
"""A job's overhead in its time limit: prolog, container image, first access to the shared file system."""
WARNED_BEFORE_S = 120
"""Seconds before its time limit at which a job may be told to end: a minute (array.sbatch), and Slurm may be a minute
early (sbatch(1), --signal).
"""
FILL_S = 2 * 3600
"""Seconds that a task's trials may take together, unless their number is given."""
MOST_PER_JOB = 64
PREDICTION_CPUS = 4
"""Cores of a job with predictions, and trials that it simulates at a time."""
REPORT_TIME_S = 3600

Shape = tuple[JobKind, int]
"""Kind of job and nodes, shared by the trials of a group."""


@dataclass(frozen=True)
class JobArray:
    """One array to submit."""

    kind: JobKind
    num_nodes: int
    tasks: list[list[str]]
    """Trial ids of each task."""
    time_limit_s: int
    """Per task."""

    @property
    def num_trials(self) -> int:
        """Number of trials of all tasks."""
        return sum(map(len, self.tasks))

    @property
    def node_hours(self) -> float:
        """Node-hours requested at most."""
        return len(self.tasks) * self.num_nodes * self.time_limit_s / 3600


def shape_of(trial: TrialSpec) -> Shape:
    """Return the group of `trial`: a rank played alone takes one node, whatever its world size."""
    if trial.evidence.is_predicted:
        return JobKind.PREDICTIONS, 1
    return JobKind.TRIALS, trial.num_nodes if trial.evidence is Evidence.MEASURED else 1


def group(
    trials: Iterable[TrialSpec], limits: Limits, *, trials_per_job: int | None = None, time_limit_s: int | None = None
) -> list[JobArray]:
    """Return the arrays for `trials`, predictions first, then by nodes; `time_limit_s` is the requested one.

    Raises UserError if `trials_per_job` makes more tasks than Slurm accepts.
    """
    groups = _groups(trials)
    most = None if limits.max_tasks is None else limits.max_tasks - 1  # the report is a job too
    if trials_per_job is not None and most is not None and (wanted := _num_tasks(groups, trials_per_job)) > most:
        raise UserError(
            f"--trials-per-job: {trials_per_job} makes {wanted} jobs and a report; Slurm accepts {most + 1} from you "
            f"now (MaxSubmitJobs, MaxJobCount); the smallest that fits: {_smallest_that_fits(groups, most)}"
        )
    least = 1 if trials_per_job or most is None else _smallest_that_fits(groups, most)
    arrays = []
    for (kind, num_nodes), members in groups.items():
        longest_s = limits.max_cpu_time_s if kind is JobKind.PREDICTIONS else limits.max_time_s
        per_job = trials_per_job or max(least, _usual_per_job(kind, members, longest_s))
        cut = [members[i : i + per_job] for i in range(0, len(members), per_job)]
        for i in range(0, len(cut), limits.max_array_size):
            tasks = cut[i : i + limits.max_array_size]
            limit_s = min(time_limit_s or max(_needed_s(kind, task) for task in tasks), longest_s or math.inf)
            ids = [[trial.trial_id for trial in task] for task in tasks]
            arrays.append(JobArray(kind, num_nodes, ids, int(limit_s)))
    return arrays


def estimated_work(trial: TrialSpec, num_params: int | None) -> float:
    """Estimate a rank's floating-point operations over the whole trial, 6 per parameter and token (Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1): for sorting trials, not for times. Unknown models come last.
    """
    if num_params is None:
        return math.inf
    tokens = trial.micro_batch_size * trial.gradient_accumulation_steps * trial.sequence_length
    return 6.0 * num_params * tokens * trial.steps.total  # with a ramp of the batch, at most


def _groups(trials: Iterable[TrialSpec]) -> dict[Shape, list[TrialSpec]]:
    """Return the trials of each group, smallest work first, in the groups' order."""
    groups = grouped(trials, shape_of)
    num_params: dict[int, int | None] = {}
    """By the model's id: a sweep's trials share their models, which outlive this dict."""

    def work(trial: TrialSpec) -> tuple[float, float]:
        if id(trial.model) not in num_params:
            num_params[id(trial.model)] = num_parameters(trial.model)
        return trial.timeout_s, estimated_work(trial, num_params[id(trial.model)])

    by_kind = sorted(groups.items(), key=lambda entry: (entry[0][0] is not JobKind.PREDICTIONS, entry[0][1]))
    return {shape: sorted(members, key=work) for shape, members in by_kind}


def _usual_per_job(kind: JobKind, members: Sequence[TrialSpec], longest_s: int | None) -> int:
    """Return the default number of trials per task, within the partition's time limit if one trial is."""
    longest_trial = members[-1]
    fill_s = min(FILL_S, longest_s - START_UP_S - longest_trial.timeout_s if longest_s else FILL_S)
    fitting = int(fill_s // _alone_s(kind, longest_trial))
    return max(1, min(MOST_PER_JOB, fitting))


def _alone_s(kind: JobKind, trial: TrialSpec) -> float:
    """Return the seconds that a trial adds to its task."""
    # Its longest silence, seldom reached by a trial that makes progress.
    return trial.timeout_s / (PREDICTION_CPUS if kind is JobKind.PREDICTIONS else 1)


def _needed_s(kind: JobKind, task: Sequence[TrialSpec]) -> int:
    """Return a task's time limit in whole minutes: its trials, plus the wait that finds a hang of the last one."""
    total_s = sum(_alone_s(kind, trial) for trial in task) + max(trial.timeout_s for trial in task)
    return 60 * math.ceil((START_UP_S + total_s) / 60)


def _num_tasks(groups: dict[Shape, list[TrialSpec]], per_job: int) -> int:
    return sum(math.ceil(len(members) / per_job) for members in groups.values())


def _smallest_that_fits(groups: dict[Shape, list[TrialSpec]], most: int) -> int:
    """Return the smallest number of trials per task that makes at most `most` tasks.

    Raises UserError if there are more groups than that.
    """
    if len(groups) > most:
        raise UserError(
            f"submit: {len(groups)} jobs and a report exceed what Slurm accepts from you now ({most + 1}: "
            "MaxSubmitJobs, MaxJobCount); try again when others have ended"
        )
    low, high = 1, max((len(members) for members in groups.values()), default=1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _num_tasks(groups, middle) <= most else (middle + 1, high)
    return low
