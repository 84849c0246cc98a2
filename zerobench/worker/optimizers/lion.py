"""Lion: the sign of a blend of momentum and gradient (Chen et al., arXiv 2302.06675, algorithm 2)."""

from collections.abc import Callable
from typing import Any

import torch

from zerobench.spec.trial import HyperparameterSpec


class Lion(torch.optim.Optimizer):
    """One moment; the same loop over tensors on every device."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] # it returns no loss
        """Decay, move by the sign, then let the momentum follow. One temporary, as large as the tensor."""
        if closure is not None:
            raise ValueError("closure: none is called")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """In a function of its own, so that one tensor's temporary is gone before the next one's is there."""
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(torch.lerp(state["exp_avg"], gradient, 1 - beta1).sign_(), alpha=-group["lr"])
        state["exp_avg"].lerp_(gradient, 1 - beta2)


def make(groups: list[dict[str, Any]], h: HyperparameterSpec) -> torch.optim.Optimizer:
    """With the trial's two betas."""
    betas = (h.adam_beta1, h.adam_beta2)
    return Lion(groups, {"lr": h.learning_rate, "betas": betas, "weight_decay": h.weight_decay})
