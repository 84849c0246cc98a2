"""torch's SGD, without momentum."""

from typing import Any

import torch

from zerobench.config.trial.trial import HyperparameterSpec


def make(groups: list[dict[str, Any]], h: HyperparameterSpec) -> torch.optim.Optimizer:
    """Make SGD without states."""
    return torch.optim.SGD(groups, lr=h.learning_rate, weight_decay=h.weight_decay)
