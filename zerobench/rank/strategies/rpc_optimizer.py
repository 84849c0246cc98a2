"""What torch's DistributedOptimizer drives on each rank: the trial's optimizer over one stage's parameters.

It takes any class that is made of parameters and has a `step` (torch/distributed/optim/optimizer.py, _LocalOptimizer),
and puts the gradients of the step's context into `parameter.grad` before. torch's own functional optimizers, which it
prefers, have a learning rate that nobody can change and no fp32 master weights, so they are passed over.
"""

import time
from collections.abc import Sequence

import torch

from zerobench.config.trial.trial import Precision, TrialSpec
from zerobench.rank.optimizers import make_optimizer
from zerobench.rank.strategies.torch_loop import loss_scale
from zerobench.rank.training.mixed_precision import MasterWeights, unscale


class StageOptimizer:
    """Unscale, clip, update; in 16 bits on fp32 master weights."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], trial: TrialSpec) -> None:
        """Over one stage's parameters."""
        self._parameters = parameters
        self._masters = None if trial.precision is Precision.FP32 else MasterWeights(parameters)
        self.updated: Sequence[torch.Tensor] = parameters if self._masters is None else self._masters.masters
        """The parameters themselves, or their fp32 masters."""
        self.inner = make_optimizer([{"params": self.updated}], trial)
        self._divisor = self.loss_scale = loss_scale(trial)
        self.busy_s = 0.0
        """Seconds spent in updates; whoever takes steps sets it back."""

    @property
    def masters(self) -> Sequence[torch.Tensor]:
        """fp32 master weights; none in fp32."""
        return () if self._masters is None else self._masters.masters

    def prepare(self, clip: float, learning_rate: float) -> None:
        """For the next update: what gradients are multiplied by, once they are unscaled, and the learning rate."""
        self._divisor = self.loss_scale / clip
        for group in self.inner.param_groups:
            group["lr"] = learning_rate

    def step(self) -> None:
        """Update; the gradients are let go."""
        start = time.perf_counter()
        if self._masters is not None:
            self._masters.take_gradients(scale=self._divisor)
        else:
            unscale(self._parameters, self._divisor)
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        if self._masters is not None:
            self._masters.give_weights()
        self.busy_s += time.perf_counter() - start
