"""The door through which every way of training comes: build, step, name your tensors, read back your config.

A strategy gets functions that build the model and the optimizer, not instances, because some (ZeRO-3, pipelines) must
decide where and in which pieces the model comes into being. Its step brackets its own phases, because not every
strategy has one forward and one backward pass.
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
    """What a step reports to while it runs: a timer, the ledger, or nothing."""

    def phase(self, phase: Phase) -> AbstractContextManager[None]:
        """Bracket one phase of one micro-step."""

    def mark_loss(self, loss: torch.Tensor) -> None:
        """Tell, within the forward phase, which tensor is the loss."""

    def elsewhere(self) -> AbstractContextManager[None]:
        """Entered by another thread that works for the phase under way, and left by it before the phase ends."""

    def came_in(self, tensor: torch.Tensor, category: Category) -> None:
        """Tell what a tensor is that came into being where nobody looks: a library of communication made it."""


@dataclass(frozen=True)
class Job:
    """What a strategy gets to work with."""

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
    """Hears of what a strategy itself sends and receives: its kind, ranks of the group, bytes."""

    norms: GradNorms = field(default_factory=GradNorms)
    """Is told the norm of the gradients in each step, by the ranks that know it, and says what to clip it to."""

    def build_model(self) -> torch.nn.Module:
        """The model with its initial weights."""
        model = self.shape_model()
        self.fill_weights(model)
        return model


class Strategy(ABC):
    """One way of training. `module` is there once `build` has run."""

    module: torch.nn.Module
    wait_s: float | None = None
    """Seconds of the last step in which this rank waited for others, where the strategy knows."""
    waits_between_phases = False
    """Whether this rank only waits where it is in no phase, so that what is no phase's time is `wait_s`."""
    whole_parameters: ParameterTensor | None = None
    """Counts of the whole model, where `module` is some of its layers alone."""
    staleness_steps: list[int] | None = None
    """RankRecord.staleness_steps."""
    notes: Sequence[str] = ()
    """What a reader of the rank's figures must know of them."""

    def __init__(self, job: Job) -> None:
        self.job = job

    @abstractmethod
    def build(self) -> None:
        """Build model, optimizer and engine."""

    @abstractmethod
    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """One optimizer step over this rank's micro-batches (each [micro_batch_size, sequence_length]).

        Returns the mean loss of this rank's micro-batches, on the device.
        """

    @abstractmethod
    def walk(self) -> Iterable[NamedTensor]:
        """Every tensor that the strategy holds, with what it is."""

    def learning_rate(self) -> float | None:
        """What the last step updated with, read back from the optimizer itself; None on a rank that has none."""
        return None

    def save(self, folder: Path) -> None:
        """Write into `folder`, which is there and empty, all that training needs to go on; called by all ranks."""
        raise NotImplementedError(f"{self.job.trial.strategy} writes no checkpoint")

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote, once `build` has run; called by all ranks, which may be others than wrote."""
        raise NotImplementedError(f"{self.job.trial.strategy} reads no checkpoint")

    def effective_config(self) -> dict[str, Any]:
        """What the engine says it runs with."""
        return {}


def only_learning_rate(*optimizers: torch.optim.Optimizer) -> float:
    """The learning rate of all groups of `optimizers`. Raises RuntimeError where they differ."""
    rates = {float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups}
    if len(rates) != 1:
        raise RuntimeError(f"parameters are updated at different learning rates: {sorted(rates)}")
    return rates.pop()


def optimizer_settings(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its class, and what its first group has beside parameters."""
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return {"optimizer": type(optimizer).__name__, **group}


def causal_loss(module: Callable[..., Any], tokens: torch.Tensor) -> torch.Tensor:
    """The model's own next-token loss, mean over the batch; nothing else of its output is kept."""
    loss: torch.Tensor = module(input_ids=tokens, labels=tokens).loss
    return loss
