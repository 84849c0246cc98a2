"""Interface of every strategy: build, step, name its tensors, read back its configuration.

A strategy gets functions that build the model and the optimizer, not instances, because some (ZeRO-3, pipelines) must
decide where and in which pieces the model is created. Its step brackets its own phases, because not every strategy has
one forward and one backward pass.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from zerobench.common.vocabulary import Category, Phase
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.training.grad_norms import GradNorms
from zerobench.records.records import ParameterTensor


class Phases(Protocol):
    """Receives a step's reports while it runs: a timer, the ledger, or nothing."""

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Bracket one phase of one micro-step."""

    def mark_loss(self, loss: torch.Tensor) -> None:
        """Report the loss, within the forward phase."""

    def elsewhere(self) -> AbstractContextManager[None]:
        """Context for a helper thread of the current phase, which leaves it before the phase ends."""

    def came_in(self, tensor: torch.Tensor, category: Category) -> None:
        """Report a tensor that a communication library made, outside of any operation."""


@dataclass(frozen=True)
class Job:
    """Inputs of a strategy."""

    trial: TrialSpec
    device: Device
    ds_config: dict[str, Any]
    """The DeepSpeed config to run with; empty for strategies without DeepSpeed."""
    shape_model: Callable[..., torch.nn.Module]
    """Makes the model on the device in the trial's precision, without setting its weights; with `on_meta=True` in fp32,
    its parameters without memory."""
    fill_weights: Callable[[torch.nn.Module], None]
    """Sets the initial weights of a model, partitioned or not."""

    heard: Callable[[str, int, int], object] = field(default=lambda _kind, _group_size, _message_bytes: None)
    """Called with each send and receive of the strategy itself: kind, ranks of the group, bytes."""

    norms: GradNorms = field(default_factory=GradNorms)
    """Collects the norm of the gradients in each step from the ranks that know it, and has the norm to clip to."""

    def build_model(self) -> torch.nn.Module:
        """Build the model with its initial weights."""
        model = self.shape_model()
        self.fill_weights(model)
        return model


class Strategy(ABC):
    """One strategy of training. `module` exists once `build` has run."""

    module: torch.nn.Module
    wait_s: float | None = None
    """Seconds of the last step in which this rank waited for others, if the strategy knows."""
    waits_between_phases = False
    """True if this rank waits whenever it is in no phase, so that time outside of phases is `wait_s`."""
    whole_parameters: ParameterTensor | None = None
    """Counts of the whole model, if `module` has only some of its layers."""
    staleness_steps: list[int] | None = None
    """RankRecord.staleness_steps."""
    notes: Sequence[str] = ()
    """Notes for readers of the rank's figures."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def build(self) -> None:
        """Build model, optimizer and engine."""

    @abstractmethod
    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Take one optimizer step over this rank's micro-batches (each [micro_batch_size, sequence_length]).

        Returns the mean loss of this rank's micro-batches, on the device.
        """

    @abstractmethod
    def walk(self) -> Iterable[NamedTensor]:
        """All tensors of the strategy, with their categories."""

    def learning_rate(self) -> float | None:
        """Learning rate of the last step, read back from the optimizer; None on a rank without one."""
        return None

    def save(self, folder: Path) -> None:
        """Write everything that training needs to continue into the empty `folder`; called by all ranks."""
        raise NotImplementedError(f"{self.job.trial.strategy} writes no checkpoint")

    def load(self, folder: Path) -> None:
        """Continue from the files of `save`, once `build` has run; called by all ranks, maybe others than wrote."""
        raise NotImplementedError(f"{self.job.trial.strategy} reads no checkpoint")

    def effective_config(self) -> dict[str, Any]:
        """Configuration that the engine reports."""
        return {}


def only_learning_rate(*optimizers: torch.optim.Optimizer) -> float:
    """Learning rate of all groups of `optimizers`. Raises RuntimeError if they differ."""
    rates = {float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups}
    if len(rates) != 1:
        raise RuntimeError(f"parameters are updated at different learning rates: {sorted(rates)}")
    return rates.pop()


def optimizer_settings(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Class of the optimizer, and the settings of its first group."""
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return {"optimizer": type(optimizer).__name__, **group}


def causal_loss(module: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
    """Next-token loss of the model, mean over the batch; the rest of its output is dropped."""
    loss: torch.Tensor = module(input_ids=tokens, labels=tokens).loss
    return loss
