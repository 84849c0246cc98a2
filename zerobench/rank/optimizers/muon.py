"""Muon without an engine, by DeepSpeed's own class: orthogonalised momentum for matrices (Jordan et al. 2024, "Muon: An
optimizer for hidden layers in neural networks"), AdamW for the rest.

Shape and name decide, as in deepspeed.initialize (deepspeed/__init__.py, set_optimizer_flags).
"""

from typing import Any

import torch

from zerobench.config.trial.optimizers import TORCH_NAMES
from zerobench.config.trial.trial import HyperparameterSpec
from zerobench.rank.optimizers import name_of

_OTHERS = ("embed", "lm_head")


def make(groups: list[dict[str, Any]], h: HyperparameterSpec) -> torch.optim.Optimizer:
    """Make Muon, with torch's AdamW for the rest, as the generated configuration does."""
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

    parameters = [parameter for group in groups for parameter in group["params"]]
    matrices = [parameter for parameter in parameters if _is_matrix(parameter)]
    others = [parameter for parameter in parameters if not _is_matrix(parameter)]
    halves = [
        {"params": matrices, "use_muon": True, **h.torch_values("lr", "weight_decay")},
        {"params": others, "use_muon": False, **h.torch_values(*TORCH_NAMES)},
    ]
    optimizer: torch.optim.Optimizer = MuonWithAuxAdam(
        halves, adam_optimizer=torch.optim.AdamW, adam_optimizer_kwargs={"foreach": None}
    )
    return optimizer


def _is_matrix(parameter: torch.Tensor) -> bool:
    name = name_of(parameter).lower()
    return parameter.ndim >= 2 and not any(word in name for word in _OTHERS)
