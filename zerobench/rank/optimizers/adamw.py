"""torch's AdamW."""

from typing import Any

import torch

from zerobench.config.trial.optimizers import TORCH_NAMES
from zerobench.config.trial.trial import HyperparameterSpec


def make(groups: list[dict[str, Any]], h: HyperparameterSpec, *, fused: bool | None = None) -> torch.optim.Optimizer:
    """Make AdamW; `fused`: update in one kernel, None: torch's choice for the device."""
    return torch.optim.AdamW(groups, **h.torch_values(*TORCH_NAMES), fused=fused)
