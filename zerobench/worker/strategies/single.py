"""A plain torch loop in one process, without DeepSpeed: what every other strategy is held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from zerobench.memory.engine_tensors import Named, walk_masters, walk_module, walk_optimizer_states
from zerobench.records import Phase
from zerobench.spec.trial import Optimizer, Precision, TrialSpec
from zerobench.worker.mixed_precision import MasterWeights
from zerobench.worker.strategies.base import Phases, Strategy, causal_loss


class Single(Strategy):
    """Forward, backward, clip, update; fp32 master weights beside a 16-bit model."""

    def build(self) -> None:
        """Build the model and a torch optimizer over its parameters, or over their fp32 masters."""
        self.module = self.job.build_model()
        self.module.train()
        trial = self.job.trial
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        self._masters = None if trial.precision is Precision.FP32 else MasterWeights(parameters)
        self._updated = parameters if self._masters is None else self._masters.masters
        self._optimizer = make_optimizer(self._updated, trial)
        self._scale = 2.0**12 if trial.precision is Precision.FP16 else 1.0

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Accumulate over the micro-batches, then update once."""
        losses = []
        for tokens in micro_batches:
            with phases.phase(Phase.FORWARD):
                loss = causal_loss(self.module, tokens)
                phases.mark_loss(loss)
            losses.append(loss.detach())
            with phases.phase(Phase.BACKWARD):
                (loss * (self._scale / len(micro_batches))).backward()
            del loss
        with phases.phase(Phase.STEP):
            self._update(learning_rate)
        return torch.stack(losses).mean()

    def walk(self) -> Iterable[Named]:
        """Module, masters and optimizer states."""
        yield from walk_module(self.module)
        if self._masters is not None:
            yield from walk_masters(self._masters.masters)
        yield from walk_optimizer_states(self._optimizer)

    def effective_config(self) -> dict[str, Any]:
        """The optimizer's own settings."""
        group = {k: v for k, v in self._optimizer.param_groups[0].items() if k != "params"}
        return {"optimizer": type(self._optimizer).__name__, **group, "loss_scale": self._scale}

    def _update(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self._masters is not None:
            self._masters.take_gradients(scale=self._scale)
        clipping = self.job.trial.hyperparameters.gradient_clipping
        if clipping:
            torch.nn.utils.clip_grad_norm_(self._updated, clipping)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._masters is not None:
            self._masters.give_weights()


def make_optimizer(parameters: Sequence[torch.Tensor], trial: TrialSpec) -> torch.optim.Optimizer:
    """The trial's optimizer over `parameters`, from torch.

    CPUAdam exists only under DeepSpeed's offload; its counterpart here is the plain AdamW of the same mathematics.
    """
    h = trial.hyperparameters
    if trial.optimizer is Optimizer.SGD:
        return torch.optim.SGD(parameters, lr=h.learning_rate, weight_decay=h.weight_decay)
    return torch.optim.AdamW(
        parameters,
        lr=h.learning_rate,
        betas=(h.adam_beta1, h.adam_beta2),
        eps=h.adam_epsilon,
        weight_decay=h.weight_decay,
        fused=True if trial.optimizer is Optimizer.FUSED_ADAMW else None,
    )
