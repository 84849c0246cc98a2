"""Runs and trials as they lie on disk before anything has begun."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.ds_config import build_ds_config
from zerobench.folder import RunFolder, TrialFolder
from zerobench.running.setup import lay_out, lay_out_trial, resolved_configs
from zerobench.spec.strategy import uses_deepspeed
from zerobench.spec.trial import TrialSpec
from zerobench.sweeping.expand import PlannedTrial


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
