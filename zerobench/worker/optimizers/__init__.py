"""What updates weights without DeepSpeed: one file an optimizer, named in its entry of zerobench.spec.optimizers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from zerobench.spec.optimizers import without_deepspeed
from zerobench.spec.trial import TrialSpec


def make_optimizer(groups: list[dict[str, Any]], trial: TrialSpec) -> torch.optim.Optimizer:
    """The trial's optimizer over groups of parameters.

    What exists under DeepSpeed alone has a counterpart of the same mathematics. Each module is imported only where it
    is wanted: what it needs may not be installed.
    """
    info = without_deepspeed(trial.optimizer)
    module = import_module(f"zerobench.worker.optimizers.{info.factory}")
    optimizer: torch.optim.Optimizer = module.make(groups, trial.hyperparameters, **info.torch_settings)
    return optimizer
