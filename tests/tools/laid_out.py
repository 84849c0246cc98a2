"""Runs as they lie on disk before any of their trials has begun."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.folder import RunFolder
from zerobench.running.setup import lay_out, resolved_configs
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
