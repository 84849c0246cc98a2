"""torch's AdamW."""

from typing import Any

import torch

from zerobench.spec.trial import HyperparameterSpec


def make(groups: list[dict[str, Any]], h: HyperparameterSpec, *, fused: bool | None = None) -> torch.optim.Optimizer:
    """In one kernel where `fused`, else as torch chooses for the device."""
    return torch.optim.AdamW(
        groups,
        lr=h.learning_rate,
        betas=(h.adam_beta1, h.adam_beta2),
        eps=h.adam_epsilon,
        weight_decay=h.weight_decay,
        fused=fused,
    )
