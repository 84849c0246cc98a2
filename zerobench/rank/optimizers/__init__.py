"""Optimizers that DeepSpeed does not provide: one file each, named by its entry in the registry."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch

from zerobench.config.trial.optimizers import OPTIMIZERS, plain_optimizer
from zerobench.config.trial.trial import TrialSpec


class TensorByTensor(torch.optim.Optimizer):
    """Updates one tensor after the other through `update`, so that temporaries of only one tensor exist at a time."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] # it returns no loss
        """Update all parameters with a gradient."""
        if closure is not None:
            raise ValueError("closure: none is called")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Update one tensor."""
        raise NotImplementedError


def make_optimizer(groups: list[dict[str, Any]], trial: TrialSpec) -> torch.optim.Optimizer:
    """Make the trial's optimizer over groups of parameters.

    Optimizers that only exist in DeepSpeed have a counterpart with the same mathematics. Modules are imported on
    demand, since their dependencies may not be installed.
    """
    info = plain_optimizer(trial.optimizer)
    module = import_module(f"zerobench.rank.optimizers.{info.factory}")
    optimizer: torch.optim.Optimizer = module.make(groups, trial.hyperparameters, **info.torch_settings)
    return optimizer


_NAME = "name_in_model"


def give_names(module: torch.nn.Module, updated: Iterable[torch.Tensor]) -> None:
    """Store the parameter's name on each tensor of `updated`, in the order of the module's trainable parameters."""
    names = (name for name, parameter in module.named_parameters() if parameter.requires_grad)
    for name, tensor in zip(names, updated, strict=True):
        setattr(tensor, _NAME, name)


def name_of(tensor: torch.Tensor) -> str:
    """Name of the parameter in its model; empty if `give_names` has not stored one."""
    return str(getattr(tensor, _NAME, ""))


def handed_to_deepspeed(trial: TrialSpec) -> Callable[[list[Any]], torch.optim.Optimizer] | None:
    """Factory of the trial's optimizer over an engine's parameters; None if DeepSpeed makes it itself."""
    if OPTIMIZERS[trial.optimizer].deepspeed is not None:
        return None
    return lambda parameters: make_optimizer([{"params": parameters}], trial)
