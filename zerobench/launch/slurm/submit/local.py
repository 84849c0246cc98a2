"""Run the jobs' scripts on this machine in sequence, as a substitute for Slurm.

It tries a submission before using a cluster's time. Each task has the array variables that Slurm would set, and a log
at the same path.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.launch.run.stop import Stop
from zerobench.launch.slurm.jobs import JobKind
from zerobench.launch.slurm.options import SubmitOptions
from zerobench.launch.slurm.submit.grouping import JobArray
from zerobench.launch.slurm.submit.limits import Limits
from zerobench.launch.slurm.submit.submission import Job, array_job, array_names, record, report_job
from zerobench.records.folder import RunFolder

_POLL_S = 0.2


@dataclass(frozen=True)
class EndedTask:
    job: Job
    task_id: int
    exit_code: int
    log: Path


def refuse_several_nodes(arrays: Sequence[JobArray]) -> None:
    """Raise UserError if a trial takes several nodes."""
    several = [array for array in arrays if array.num_nodes > 1]
    if several:
        trials = sum(array.num_trials for array in several)
        raise UserError(f"--local: {trials} trials take {several[0].num_nodes} or more nodes; --local has one")


def run_here(
    run: RunFolder, arrays: Sequence[JobArray], options: SubmitOptions, limits: Limits, stop: Stop
) -> Iterator[EndedTask]:
    """Run every task of `arrays`, then the report, until all are done or the user stops them; yields each as it ends.

    Raises UserError for a value that no batch script can hold. Raises OSError if a file cannot be written.
    """
    for name, array in zip(array_names(run, arrays), arrays, strict=True):
        yield from _run_job(run, array_job(run, name, array, options), stop)
    if not stop.asked:
        yield from _run_job(run, report_job(run, [], options, limits), stop)


def task_variables(job: Job, task_id: int) -> dict[str, str]:
    """Return the variables Slurm would set for task `task_id` of `job` (sbatch(1), OUTPUT ENVIRONMENT VARIABLES)."""
    # Not SLURM_JOB_ID: there is no job, and other programs take it for a sign of one.
    variables = {"SLURM_JOB_NAME": job.name, "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"}
    if job.kind is JobKind.REPORT:
        return variables
    return variables | {
        "SLURM_ARRAY_TASK_ID": str(task_id),
        "SLURM_ARRAY_TASK_COUNT": str(job.num_tasks),
        "SLURM_ARRAY_TASK_MIN": "0",
        "SLURM_ARRAY_TASK_MAX": str(job.num_tasks - 1),
    }


def _run_job(run: RunFolder, job: Job, stop: Stop) -> Iterator[EndedTask]:
    record(run, job.submitted(None), None)
    for task_id in range(job.num_tasks):
        if stop.asked:
            return
        suffix = "" if job.kind is JobKind.REPORT else f"_{task_id}"
        log = run.slurm_logs / f"{job.name}-local{suffix}.out"
        outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        variables = outside | task_variables(job, task_id)
        yield EndedTask(job, task_id, _run_script(run.slurm_script(job.name), variables, log, stop), log)


def _run_script(script: Path, variables: Mapping[str, str], log: Path, stop: Stop) -> int:
    """Run a script and return its exit status."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["bash", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(variables),
            start_new_session=True,
        )
        is_signalled = False
        while process.poll() is None:
            # The script has a trial to end, so a stop is passed on and waited for.
            if stop.asked and not is_signalled:
                process.send_signal(stop.signal or signal.SIGTERM)
                is_signalled = True
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
    return process.returncode
