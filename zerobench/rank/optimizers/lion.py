"""Lion: the sign of a blend of momentum and gradient (Chen et al., arXiv 2302.06675, algorithm 2)."""

from typing import Any

import torch

from zerobench.config.trial.trial import HyperparameterSpec
from zerobench.rank.optimizers import TensorByTensor


class Lion(TensorByTensor):
    """Lion with one moment; the same loop over tensors on every device."""

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Decay, move by the sign, then update the momentum. Needs one temporary as large as the tensor."""
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(torch.lerp(state["exp_avg"], gradient, 1 - beta1).sign_(), alpha=-group["lr"])
        state["exp_avg"].lerp_(gradient, 1 - beta2)


def make(groups: list[dict[str, Any]], h: HyperparameterSpec) -> torch.optim.Optimizer:
    """Make Lion with the trial's two betas."""
    return Lion(groups, h.torch_values("lr", "betas", "weight_decay"))
