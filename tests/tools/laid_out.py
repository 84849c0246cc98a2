"""Runs and trials as they lie on disk before anything has begun."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.config.deepspeed import build_ds_config
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.setup import lay_out, lay_out_trial, resolved_configs
from zerobench.records.folder import RunFolder, TrialFolder


def laid_out(
    path: Path,
    planned: Sequence[PlannedTrial | TrialSpec],
    sweep: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    *,
    make_folders: bool = True,
) -> RunFolder:
    """A run of these trials in the folder `path`, which is made where it is not there."""
    items = [one if isinstance(one, PlannedTrial) else PlannedTrial(trial=one) for one in planned]
    path.mkdir(parents=True, exist_ok=True)
    lay_out(RunFolder(path), items, resolved_configs(items), sweep or {}, environment or {}, make_folders=make_folders)
    return RunFolder(path)


def trial_laid_out(path: Path, trial: TrialSpec) -> TrialFolder:
    """The trial in the new folder `path`."""
    folder = TrialFolder(path)
    lay_out_trial(folder, trial, build_ds_config(trial) if uses_deepspeed(trial) else None)
    return folder
