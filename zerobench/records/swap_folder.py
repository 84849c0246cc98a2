"""Names each trial's own swap folder under the shared NVMe path."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from zerobench.config.deepspeed.build import swap_to
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder


def swap_folder(trial: TrialSpec, folder: TrialFolder) -> str | None:
    """Swap folder under `nvme_path` of the trial in `folder`, or None without such a path.

    DeepSpeed names its swap files only by rank and leaves them behind (swap_tensor/optimizer_utils.py): two trials in
    one folder would read each other's. A separate folder can be deleted after the trial.
    """
    return None if trial.nvme_path is None else str(folder.outside(trial.nvme_path, trial.trial_id))


def set_swap_folder(config: Mapping[str, Any], trial: TrialSpec, folder: TrialFolder) -> dict[str, Any]:
    """Copy of a trial's `config` that swaps to the trial's own folder."""
    changed = copy.deepcopy(dict(config))
    swap_to(changed, swap_folder(trial, folder))
    return changed
