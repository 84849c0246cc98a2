"""The submissions of a run, and the trials of each array task.

Shared by the code that submits, watches and runs jobs: `slurm/submission.json` in the run folder names every array and
job ever submitted for the run, and `slurm/<name>.tasks` lists an array's trials.
"""

from enum import StrEnum
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.records import SCHEMA_VERSION, Record
from zerobench.records.store import UPGRADES, read_record


class JobKind(StrEnum):
    """Purpose of a job."""

    TRIALS = "trials"
    PREDICTIONS = "predictions"
    REPORT = "report"


class SubmittedJob(Record):
    """One array, or one plain job, as submitted."""

    name: str
    """Name of its script, its tasks file and its logs."""
    kind: JobKind
    job_id: int | None
    """Slurm's id; None without Slurm."""
    num_tasks: int
    """Elements of the array; 1 for the report."""
    num_nodes: int
    """Per array element."""
    time_limit_s: int
    """Per array element."""
    submitted_at_s: float
    """Unix time."""


class Submission(Record):
    """submission.json: every array and job ever submitted for one run, in that order."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    cluster: str | None
    """Slurm's ClusterName; None without Slurm."""
    jobs: list[SubmittedJob]


UPGRADES.setdefault(Submission, {})


def read_submission(run: RunFolder) -> Submission:
    """Read the submissions of `run`; without jobs if nothing was submitted.

    Raises UserError if the file is torn, corrupt, or newer than this version.
    """
    if not run.submission.exists():
        return Submission(run_id=run.run_id, cluster=None, jobs=[])
    return read_record(run.submission, Submission)


def write_submission(run: RunFolder, submission: Submission) -> None:
    """Replace the submissions file atomically.

    Raises OSError if it cannot be written.
    """
    run.slurm.mkdir(exist_ok=True)
    write_whole(run.submission, submission.model_dump_json(indent=1))


def tasks_text(tasks: list[list[str]]) -> str:
    """Text of the tasks file: one line per array task, its trial ids separated by spaces (ids contain none)."""
    return "".join(f"{' '.join(trial_ids)}\n" for trial_ids in tasks)


def read_tasks(path: Path) -> list[list[str]]:
    """Read the trial ids of each array task; task i is element i.

    Raises UserError if the file cannot be read.
    """
    try:
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
