"""A run of predicted trials: no device, any number of processor cores."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.config.sweep.expand import PlannedTrial
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult, extend_run, run_sweep
from zerobench.records.folder import RunFolder


def predict(planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], reports: Path, observer: Observer) -> RunResult:
    """Run the predicted trials `planned` into a fresh folder under `reports`. Raises UserError."""
    environment = capture_environment()
    return run_sweep(planned, sweep, environment=environment, reports=reports, executor=_executor(), observer=observer)


def extend(run: RunFolder, planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], observer: Observer) -> RunResult:
    """Run those of `planned` that `run` does not have yet. Raises UserError."""
    environment = capture_environment()
    return extend_run(run, planned, sweep=sweep, environment=environment, executor=_executor(), observer=observer)


def _executor() -> LocalExecutor:
    return LocalExecutor(num_cpus=os.cpu_count() or 1, num_gpus=0)
