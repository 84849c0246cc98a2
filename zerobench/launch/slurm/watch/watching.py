"""Gather all facts about a run at one time: its folder, its submissions, Slurm's states.

Needs no torch and no DeepSpeed: it runs on login nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zerobench.launch.slurm.jobs import JobKind, Submission, read_submission, read_tasks
from zerobench.launch.slurm.queue import TIMEOUT_S, JobStates, ended_jobs, job_states
from zerobench.launch.slurm.tasks import Stage
from zerobench.launch.slurm.watch.status import RunFacts, RunStatus, run_status
from zerobench.launch.slurm.watch.traces import TrialTrace, read_traces
from zerobench.records.folder import RunFolder
from zerobench.records.store import Plan, read_record

_LOCKS = Path("/proc/locks")


@dataclass
class Watcher:
    """Looks at one run repeatedly; results that cannot have changed are reused."""

    run: RunFolder
    timeout_s: float = TIMEOUT_S
    """Seconds Slurm may take to answer."""
    _traces: Mapping[str, TrialTrace] = field(default_factory=dict)
    _ended: JobStates = field(default_factory=dict)

    def look(self) -> tuple[Submission, RunStatus]:
        """Return the submissions and the present status.

        Raises UserError if it is not a run folder, or its plan or submission cannot be read.
        """
        plan = read_record(self.run.plan, Plan)
        submission = read_submission(self.run)
        states = self._ask(submission)
        # After the queue: a trial that ends between the two has its record, so that none seems lost.
        trial_ids = [entry.trial_id for entry in plan.trials if entry.rule is None and entry.reason is None]
        self._traces = read_traces(self.run, trial_ids, self._traces)
        known = RunFacts(
            plan=plan.trials,
            traces=self._traces,
            now_s=time.time(),
            jobs=submission.jobs,
            tasks={
                job.name: read_tasks(self.run.slurm_tasks(job.name))
                for job in submission.jobs
                if job.kind is not JobKind.REPORT
            },
            states=states,
            runner_here=runner_here(self.run, shared=all(job.job_id is None for job in submission.jobs)),
        )
        return submission, run_status(known)

    def _ask(self, submission: Submission) -> JobStates | None:
        """Ask squeue for all jobs, and sacct, once each, for those squeue has forgotten."""
        job_ids = [job.job_id for job in submission.jobs if job.job_id is not None]
        states = job_states(job_ids, self.timeout_s, submission.cluster)
        if states is None:
            return None
        forgotten = [job_id for job_id in job_ids if not states[job_id] and job_id not in self._ended]
        if forgotten:
            ended = ended_jobs(forgotten, self.timeout_s) or {}
            self._ended |= {job_id: ended.get(job_id, []) for job_id in forgotten}
        over = {job_id: [s for s in self._ended.get(job_id, []) if s.stage is Stage.OVER] for job_id in job_ids}
        return {job_id: states[job_id] or over[job_id] for job_id in job_ids}


def runner_here(run: RunFolder, *, shared: bool) -> bool | None:
    """Return True if a process of this machine holds the run's lock; None if one of another machine may.

    Only an exclusive lock counts, unless `shared`: jobs of a cluster share it, and Slurm reports those. It is read from
    the kernel's list (proc_locks(5)): trying the lock would take it, and a runner starting just then would be refused.
    """
    try:
        lock = run.path / ".lock"
        inode = str(lock.stat().st_ino)
        words = lock.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return False
    try:
        # Trying the lock would take it, and a runner starting just then would be refused: so the kernel's list is read
        # (proc_locks(5)).
        rows = [line.split() for line in _LOCKS.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    kinds = {"READ", "WRITE"} if shared else {"WRITE"}
    # 1: FLOCK  ADVISORY  WRITE 22431 fe:00:2247127 0 EOF; a row that waits for a lock has an arrow after its number
    if any(len(row) >= 6 and row[3] in kinds and row[5].rpartition(":")[2] == inode for row in rows):
        return True
    host = words.rpartition(" on ")[2]
    return False if not words or host == os.uname().nodename else None
