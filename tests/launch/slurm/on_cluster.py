"""Runs of stand-in ranks on a real cluster: made, submitted and waited for."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.launch.slurm.cluster import Cluster
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.model import ModelSpec
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.setup import lay_out, new_run_folder, resolved_configs
from zerobench.launch.slurm.options import SubmitOptions, keep_options
from zerobench.launch.slurm.queue import job_states
from zerobench.launch.slurm.submit.limits import Limits, read_limits
from zerobench.launch.slurm.submit.submission import (
    Job,
    array_job,
    array_names,
    plan_arrays,
    record,
    report_job,
    sbatch,
)
from zerobench.launch.slurm.tasks import Stage, TaskState
from zerobench.records.folder import RunFolder, TrialFolder
from zerobench.records.records import TrialRecord
from zerobench.records.store import read_record

PATIENCE_S = 300.0
Acts = Mapping[int, str]
"""What ranks do that do not simply complete (standin_rank.ACTS)."""


@dataclass
class OnCluster:
    """One run of stand-in ranks, whose trials are known by their names."""

    cluster: Cluster
    run: RunFolder
    trials: Mapping[str, TrialSpec]
    options: SubmitOptions = field(default_factory=SubmitOptions)
    job_ids: list[int] = field(default_factory=list)

    def folder(self, name: str) -> TrialFolder:
        return self.run.trial(self.trials[name].trial_id)

    def record(self, name: str) -> TrialRecord:
        return read_record(self.folder(name).record, TrialRecord)

    def aside(self, name: str) -> list[TrialFolder]:
        """The earlier attempts at a trial."""
        return [TrialFolder(path) for path in sorted(self.run.path.glob(f"set_aside/{self.folder(name).path.name}.*"))]

    def aside_record(self, name: str) -> TrialRecord:
        """Of the one earlier attempt."""
        [attempt] = self.aside(name)
        return read_record(attempt.record, TrialRecord)

    def submit(self, *, report: bool = False) -> None:
        """Hand all trials to Slurm."""
        limits = read_limits(self.options)
        assert limits is not None, "the cluster does not answer"
        arrays = plan_arrays(self.trials.values(), self.options, limits)
        keep_options(self.run, self.options)
        for name, array in zip(array_names(self.run, arrays), arrays, strict=True):
            job = array_job(self.run, name, array, self.options)
            self._hand_over(job, limits)
        if report:
            self._hand_over(report_job(self.run, self.job_ids, self.options, limits), limits)

    def _hand_over(self, job: Job, limits: Limits) -> None:
        self.job_ids.append(sbatch(self.run.slurm_script(job.name)))
        record(self.run, job.submitted(self.job_ids[-1]), limits.cluster)

    @property
    def task(self) -> str:
        """Slurm's name of the first task of the first array."""
        return f"{self.job_ids[0]}_0"

    def await_in_flight(self, name: str) -> None:
        """Until all ranks of a trial have begun and none has ended."""
        folder, ranks = self.folder(name), self.trials[name].world_size
        self.await_that(f"{name}", lambda: all(folder.progress(rank).exists() for rank in range(ranks)))

    def await_ended(self, patience_s: float = PATIENCE_S) -> None:
        """Until every job of ours is over."""
        self.await_that("the end of the jobs", lambda: all(s.stage is Stage.OVER for s in self.states()), patience_s)

    def states(self) -> list[TaskState]:
        """Where the tasks of all our jobs stand."""
        states = job_states(self.job_ids, 30.0)
        assert states is not None, "squeue does not answer"
        return [state for job_id in self.job_ids for state in states[job_id]]

    def await_that(self, what: str, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            is_late = time.monotonic() > deadline or self.cluster.gave_up
            assert not is_late, f"{what} did not come; {self.states()}; logs:\n{self.logs()}"
            time.sleep(0.3)

    def logs(self) -> str:
        """What the jobs have printed."""
        return "\n".join(f"== {log.name}\n{log.read_text()}" for log in sorted(self.run.slurm_logs.iterdir()))


def standin_trial(name: str, acts: Acts | None = None, **fields: object) -> TrialSpec:
    """A trial on two nodes with two ranks each, one of which does as `acts` says."""
    config = {"model_type": "standin", "acts": {str(rank): act for rank, act in (acts or {}).items()}}
    shape = {"strategy": "zero1", "num_nodes": 2, "gpus_per_node": 2, "timeout_s": 600.0} | fields
    return TrialSpec.model_validate({"model": ModelSpec(name=name, hf_config=config), **shape})


def standin_run(
    cluster: Cluster, reports: Path, name: str, trials: Sequence[TrialSpec], **options: object
) -> OnCluster:
    """A run of `trials`, laid out and not yet submitted."""
    planned = [PlannedTrial(trial=trial) for trial in trials]
    run = new_run_folder(reports, name)
    lay_out(run, planned, resolved_configs(planned), {"name": name}, {})
    nodes = max(trial.num_nodes for trial in trials)
    said = {
        "nodes": nodes,
        "gpus_per_node": 2,
        "trials_per_job": 8,
        "python": str(standin_python(reports)),
        "time": "10",
    }
    return OnCluster(cluster, run, {t.model.name: t for t in trials}, SubmitOptions.model_validate(said | options))


def standin_python(folder: Path) -> Path:
    """A program in `folder` that stands where the ranks' interpreter does."""
    path = folder / "standin-python"
    if not path.exists():
        here = Path(__file__).with_name("standin_rank.py")
        path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S -E '{here}' \"$@\"\n")
        path.chmod(0o755)
    return path
