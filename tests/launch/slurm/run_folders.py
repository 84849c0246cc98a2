"""Run folders as they look while jobs work in them, made by hand: no trial runs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from tests.tools.rank_records import progress
from zerobench.common.vocabulary import Status
from zerobench.launch.slurm.jobs import JobKind, Submission, SubmittedJob, tasks_text, write_submission
from zerobench.records.folder import RunFolder
from zerobench.records.records import TrialRecord
from zerobench.records.store import Plan, PlanEntry

SUBMITTED_S = 1_795_291_100.0
"""Before every time in the recorded samples."""


def make_run(path: Path, trial_ids: Sequence[str], skipped: Sequence[str] = ()) -> RunFolder:
    """A run of `trial_ids`, none begun; those of `skipped` break a rule."""
    run = RunFolder(path)
    entries = [
        PlanEntry(trial_id=trial_id, reason="three ranks", rule="world_size")
        if trial_id in skipped
        else PlanEntry(trial_id=trial_id)
        for trial_id in trial_ids
    ]
    for trial_id in trial_ids:
        run.trial(trial_id).path.mkdir(parents=True)
    run.plan.write_text(Plan(run_id=run.run_id, trials=entries).model_dump_json())
    return run


def submit(run: RunFolder, *jobs: SubmittedJob, tasks: dict[str, list[list[str]]], cluster: str | None = None) -> None:
    """Note `jobs` in the run's folder, with the trials of each task."""
    write_submission(run, Submission(run_id=run.run_id, cluster=cluster, jobs=list(jobs)))
    for name, trials in tasks.items():
        run.slurm_tasks(name).write_text(tasks_text(trials))


def job(name: str, job_id: int | None, num_tasks: int, kind: JobKind = JobKind.TRIALS) -> SubmittedJob:
    """An array of `num_tasks` tasks on one node each."""
    return SubmittedJob(
        name=name,
        kind=kind,
        job_id=job_id,
        num_tasks=num_tasks,
        num_nodes=1,
        time_limit_s=1800,
        submitted_at_s=SUBMITTED_S,
    )


def end(run: RunFolder, trial_id: str, status: Status, reason: str | None = None, at_s: float | None = None) -> None:
    """Leave the record of a trial that ended."""
    record = TrialRecord(
        run_id=run.run_id, trial_id=trial_id, config_hash="0" * 8, status=status, reason=reason, ranks_expected=1
    )
    path = run.trial(trial_id).record
    path.write_text(record.model_dump_json())
    if at_s is not None:
        os.utime(path, (at_s, at_s))


def begin(run: RunFolder, trial_id: str, at_s: float, said_at_s: Sequence[float] = (), phase: str = "timed") -> None:
    """Begin a trial at `at_s`; its ranks last spoke at `said_at_s`, each a step further than the one before."""
    folder = run.trial(trial_id)
    folder.command.write_text("deepspeed ...\n")
    os.utime(folder.command, (at_s, at_s))
    for rank, when_s in enumerate(said_at_s):
        steps = {"phase": phase, "step_index": rank + 2, "num_steps": 9}
        word = progress(rank, hostname="n1", **steps, memory_bytes=2**30, updated_at_s=when_s)
        folder.progress(rank).write_text(json.dumps(word.model_dump()))
        os.utime(folder.progress(rank), (when_s, when_s))
