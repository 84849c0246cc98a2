"""What updates weights where DeepSpeed has nothing of its own: a file an optimizer, named in the registry's entry."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch

from zerobench.config.trial.optimizers import OPTIMIZERS, plain_optimizer
from zerobench.config.trial.trial import TrialSpec


class TensorByTensor(torch.optim.Optimizer):
    """Updates one tensor after the other, each by a call of `update`: its temporaries are gone before the next one's
    are there.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override] # it returns no loss
        """Update all that have a gradient."""
        if closure is not None:
            raise ValueError("closure: none is called")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """One tensor by its gradient."""
        raise NotImplementedError


def make_optimizer(groups: list[dict[str, Any]], trial: TrialSpec) -> torch.optim.Optimizer:
    """The trial's optimizer over groups of parameters.

    What exists under DeepSpeed alone has a counterpart of the same mathematics. Each module is imported only where it
    is wanted: what it needs may not be installed.
    """
    info = plain_optimizer(trial.optimizer)
    module = import_module(f"zerobench.rank.optimizers.{info.factory}")
    optimizer: torch.optim.Optimizer = module.make(groups, trial.hyperparameters, **info.torch_settings)
    return optimizer


_NAME = "name_in_model"


def give_names(module: torch.nn.Module, updated: Iterable[torch.Tensor]) -> None:
    """Tell each of `updated`, in the order of the module's trainable parameters, what it is of."""
    names = (name for name, parameter in module.named_parameters() if parameter.requires_grad)
    for name, tensor in zip(names, updated, strict=True):
        setattr(tensor, _NAME, name)


def name_of(tensor: torch.Tensor) -> str:
    """The parameter's name in its model; empty where nobody has told it."""
    return str(getattr(tensor, _NAME, ""))


def handed_to_deepspeed(trial: TrialSpec) -> Callable[[list[Any]], torch.optim.Optimizer] | None:
    """What makes the trial's optimizer over an engine's parameters; None where DeepSpeed does so by itself."""
    if OPTIMIZERS[trial.optimizer].deepspeed is not None:
        return None
    return lambda parameters: make_optimizer([{"params": parameters}], trial)
