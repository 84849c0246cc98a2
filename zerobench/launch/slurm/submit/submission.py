"""Submit a run's trials to Slurm: array after array, then the report that follows them.

Each submission is recorded at once, so no job that Slurm has accepted is forgotten if the next one is refused. Names
are never reused, since a job reads its tasks from the file of its name.

sbatch's answer must not be lost: it has then accepted a job.
"""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.runner import standing
from zerobench.launch.run.stop import stop_on_signals
from zerobench.launch.slurm.jobs import (
    JobKind,
    Submission,
    SubmittedJob,
    read_submission,
    read_tasks,
    tasks_text,
    write_submission,
)
from zerobench.launch.slurm.options import SubmitOptions
from zerobench.launch.slurm.queue import JobStates
from zerobench.launch.slurm.submit.batch import array_script, report_script, report_time_s
from zerobench.launch.slurm.submit.grouping import JobArray, group
from zerobench.launch.slurm.submit.limits import Limits
from zerobench.launch.slurm.tasks import Stage
from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.store import Run

TIMEOUT_S = 120.0

_CONTROLLER_VARIABLES = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT"}
"""Variables that select the controller for Slurm's programs."""
_VARIABLES = {
    "array": "SBATCH_ARRAY_INX",
    "time": "SBATCH_TIMELIMIT",
    "requeue": "SBATCH_NO_REQUEUE",
    "mem": "SBATCH_MEM_PER_NODE",
}
"""sbatch's variables (sbatch(1), INPUT ENVIRONMENT VARIABLES) not named SBATCH_ plus the option."""
_OPTION = re.compile(r"^#SBATCH \"?--([a-z-]+)", re.MULTILINE)


def sbatch(script: Path) -> int:
    """Submit `script` and return its job's id.

    Raises UserError if Slurm refuses it, does not answer, or is absent.
    """
    environment = sbatch_environment(os.environ, _OPTION.findall(script.read_text(encoding="utf-8")))
    try:
        answer = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=TIMEOUT_S,
            start_new_session=True,  # Ctrl-C is for us, who must hear the answer
            check=False,
        )
    except OSError as error:
        raise UserError(f"sbatch: {error.strerror or error}; --local runs the same without Slurm") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"sbatch: no answer within {TIMEOUT_S:g} s; squeue shows whether it was accepted") from None
    number = answer.stdout.decode(errors="replace").strip().partition(";")[0]
    if answer.returncode or not number.isdecimal():
        words = (answer.stderr.strip() or answer.stdout.strip()).decode(errors="replace").split()
        raise UserError(f"sbatch: {' '.join(words).removeprefix('sbatch: ') or f'exit status {answer.returncode}'}")
    return int(number)


def sbatch_environment(environment: Mapping[str, str], options: Collection[str]) -> dict[str, str]:
    """Return `environment` without variables that would override `options`, which the script sets, and without those of
    the current job, if any: its sizes are not ours, and sbatch passes them on.
    """
    ours = {_VARIABLES.get(key, f"SBATCH_{key.replace('-', '_').upper()}") for key in options}
    return {
        name: value
        for name, value in environment.items()
        if name not in ours and (not name.startswith("SLURM_") or name in _CONTROLLER_VARIABLES)
    }


@dataclass(frozen=True)
class Job:
    """A job whose script is in the run's folder."""

    name: str
    kind: JobKind
    num_tasks: int
    num_nodes: int
    time_limit_s: int

    def submitted(self, job_id: int | None) -> SubmittedJob:
        """Return its record; `job_id` is None without Slurm."""
        return SubmittedJob(**vars(self), job_id=job_id, submitted_at_s=time.time())


def plan_arrays(trials: Iterable[TrialSpec], options: SubmitOptions, limits: Limits) -> list[JobArray]:
    """Group `trials` into arrays for the nodes of `options`."""
    return group(trials, limits, trials_per_job=options.trials_per_job, time_limit_s=options.time_limit_s)


def array_names(run: RunFolder, arrays: Sequence[JobArray]) -> list[str]:
    """Name each array as none before: `2-nodes`, then `2-nodes-2`, or `predictions`."""
    usual = ["1-node" if array.num_nodes == 1 else f"{array.num_nodes}-nodes" for array in arrays]
    names = ["predictions" if a.kind is JobKind.PREDICTIONS else name for a, name in zip(arrays, usual, strict=True)]
    return _fresh(run, names)


def array_job(run: RunFolder, name: str, array: JobArray, options: SubmitOptions) -> Job:
    """Write the tasks and the script of `array` to the run's folder.

    Raises UserError for a value that no batch script can hold. Raises OSError if a file cannot be written.
    """
    _write(run, name, array_script(run, name, array, options))
    write_whole(run.slurm_tasks(name), tasks_text(array.tasks))
    return Job(name, array.kind, len(array.tasks), array.num_nodes, array.time_limit_s)


def report_job(run: RunFolder, after: Sequence[int], options: SubmitOptions, limits: Limits) -> Job:
    """Write the script of the report that follows the jobs `after` to the run's folder.

    Raises UserError, OSError as array_job.
    """
    [name] = _fresh(run, ["report"])
    _write(run, name, report_script(run, name, after, options, limits.max_cpu_time_s))
    return Job(name, JobKind.REPORT, 1, 1, report_time_s(limits.max_cpu_time_s))


def submit(
    run: RunFolder, arrays: Sequence[JobArray], options: SubmitOptions, limits: Limits
) -> Iterator[SubmittedJob]:
    """Submit `arrays`, then the report on them and on jobs still queued; yields each accepted job.

    Raises UserError if Slurm refuses one; earlier ones stay submitted. Raises OSError if a file cannot be written.
    """
    ids = [job.job_id for job in read_submission(run).jobs if job.job_id is not None and job.kind is not JobKind.REPORT]
    for name, array in zip(array_names(run, arrays), arrays, strict=True):
        job = _hand_over(run, array_job(run, name, array, options), limits)
        ids.append(job.job_id or 0)
        yield job
    yield _hand_over(run, report_job(run, ids, options, limits), limits)


def missing(run: Run, states: JobStates) -> list[str]:
    """Return the ids of trials that must still run and that no job will run, by `states` of the run's jobs."""
    coming = covered(run.folder, read_submission(run.folder), states)
    return [trial_id for trial_id, status in standing(run) if status is None and trial_id not in coming]


def covered(run: RunFolder, submission: Submission, states: JobStates) -> set[str]:
    """Return the ids of trials whose task waits or has nodes."""
    trial_ids: set[str] = set()
    for job in submission.jobs:
        if job.job_id is None or job.kind is JobKind.REPORT:
            continue
        alive = {state.task_id for state in states.get(job.job_id, []) if state.stage is not Stage.OVER}
        if alive:
            for number, task in enumerate(read_tasks(run.slurm_tasks(job.name))):
                if None in alive or number in alive:
                    trial_ids.update(task)
    return trial_ids


def record(run: RunFolder, job: SubmittedJob, cluster: str | None) -> None:
    """Record that `job` was submitted."""
    before = read_submission(run)
    write_submission(run, before.model_copy(update={"jobs": [*before.jobs, job], "cluster": cluster or before.cluster}))


def _hand_over(run: RunFolder, job: Job, limits: Limits) -> SubmittedJob:
    """Submit `job` and record it; a stop waits until both are done."""
    with stop_on_signals() as stop:
        try:
            submitted = job.submitted(sbatch(run.slurm_script(job.name)))
        except UserError as error:
            run.slurm_script(job.name).unlink()  # its name is free again
            raise UserError(f"{error}; continue with: zerobench submit --resume {shlex.quote(str(run.path))}") from None
        record(run, submitted, limits.cluster)
    if stop.asked:
        raise KeyboardInterrupt
    return submitted


def _fresh(run: RunFolder, names: Sequence[str]) -> list[str]:
    """Return `names`, each with a number appended if an earlier job, or one before it, has it."""
    taken = {path.stem for path in run.slurm.glob("*.sbatch")} | {job.name for job in read_submission(run).jobs}
    fresh: list[str] = []
    for name in names:
        number = 1
        while (numbered := name if number == 1 else f"{name}-{number}") in taken:
            number += 1
        taken.add(numbered)
        fresh.append(numbered)
    return fresh


def _write(run: RunFolder, name: str, script: str) -> None:
    run.slurm_logs.mkdir(parents=True, exist_ok=True)
    write_whole(run.slurm_script(name), script)
