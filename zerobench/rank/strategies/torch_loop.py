"""A plain torch training loop without DeepSpeed, the base of the torch strategies.

Forward, backward, clip, update; with fp32 master weights for a 16-bit model, unless its trained part is in fp32.
Subclasses wrap the model, and choose the context of micro-batches that are not the last of their step.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zerobench.common.vocabulary import Phase
from zerobench.config.trial.trial import Precision, TrialSpec
from zerobench.rank.ledger.engine_tensors import NamedTensor, walk_masters, walk_module, walk_optimizer_states
from zerobench.rank.optimizers import give_names, make_optimizer
from zerobench.rank.strategies.base import Phases, Strategy, causal_loss, only_learning_rate, optimizer_settings
from zerobench.rank.strategies.checkpoint_states import (
    States,
    load_parts,
    load_whole,
    make_optimizer_states,
    named_states,
    save_parts,
    save_whole,
)
from zerobench.rank.training.compilation import compile_blocks, compile_whole
from zerobench.rank.training.mixed_precision import MasterWeights, unscale

FP16_LOSS_SCALE = 2.0**12
"""Static, so that no step is skipped; 16-bit gradients of these models neither vanish nor overflow under it."""


class TorchLoop(Strategy):
    """Accumulates over the micro-batches, then updates once."""

    _masters: MasterWeights | None = None

    def build(self) -> None:
        """Build the model, its wrapper, and a torch optimizer over its parameters or their fp32 masters."""
        self.module = self._build_module()
        self.module.train()
        self._forward = self._wrap()
        trial = self.job.trial
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if trial.trains_in_16_bits and self._keeps_masters:
            self._masters = MasterWeights(parameters)
        self._updated: Sequence[torch.Tensor] = parameters if self._masters is None else self._masters.masters
        give_names(self.module, self._updated)
        self._optimizer = make_optimizer(self._parameter_groups(self._updated), trial)
        self._scale = loss_scale(trial)

    _keeps_masters = True
    """True if a 16-bit model needs separate fp32 masters."""
    _keeps_gradients = False
    """True if gradients are set to zero between steps instead of dropped."""
    _is_divided = False
    """True if each rank has states of its own, so that all ranks write a checkpoint."""

    def _build_module(self) -> torch.nn.Module:
        model = self.job.build_model()
        compile_blocks(model, self.job.trial)
        return model

    def _wrap(self) -> Callable[..., Any]:
        """Wrap the model for the forward pass; by default the model itself."""
        compile_whole(self.module, self.job.trial)
        return self.module

    def _parameter_groups(self, parameters: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
        """Group the parameters that the optimizer updates together."""
        return [{"params": parameters}]

    def _clip(self, parameters: Sequence[torch.Tensor], largest: float) -> torch.Tensor:
        """Scale all gradients so that their global norm is at most `largest`; returns the norm before."""
        return torch.nn.utils.clip_grad_norm_(parameters, largest)

    def _clip_all(self) -> None:
        """Clip the gradients of the update, and report their norm."""
        largest = self.job.norms.largest
        if largest is not None:
            self.job.norms.tell(self._clip(self._updated, largest))

    def _accumulating(self) -> AbstractContextManager[None]:
        """Context of a micro-batch that is not the last of its step."""
        return nullcontext()

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Accumulate over the micro-batches, then update once."""
        losses = []
        share = self._scale / len(micro_batches)
        for tokens in micro_batches[:-1]:
            with self._accumulating():
                losses.append(self._forward_backward(tokens, share, phases))
        losses.append(self._forward_backward(micro_batches[-1], share, phases))
        with phases.phase(Phase.STEP):
            self._update(learning_rate)
        return torch.stack(losses).mean()

    def _forward_backward(self, tokens: torch.Tensor, share: float, phases: Phases) -> torch.Tensor:
        with phases.phase(Phase.FORWARD):
            loss = causal_loss(self._forward, tokens)
            phases.mark_loss(loss)
        detached = loss.detach()
        with phases.phase(Phase.BACKWARD):
            (loss * share).backward()
        return detached

    def walk(self) -> Iterable[NamedTensor]:
        """Tensors of the module, its masters and the optimizer."""
        yield from walk_module(self.module)
        if self._masters is not None:
            yield from walk_masters(self._masters.masters)
        yield from walk_optimizer_states(self._optimizer)

    def learning_rate(self) -> float | None:
        """Learning rate of the torch optimizer."""
        return only_learning_rate(self._optimizer)

    def save(self, folder: Path) -> None:
        """Save all states on rank 0 if every rank has the same, else each rank's parts."""
        if self._is_divided:
            save_parts(self._states(), folder)
        elif not dist.is_initialized() or dist.get_rank() == 0:
            save_whole(self._states(), folder)

    def load(self, folder: Path) -> None:
        """Load all states on each rank, or its parts."""
        make_optimizer_states(self._optimizer)
        read = load_parts if self._is_divided else load_whole
        read(self._states(), folder)

    def _states(self) -> States:
        return named_states(self.module, self._updated, self._optimizer)

    def effective_config(self) -> dict[str, Any]:
        """Settings of the optimizer."""
        return optimizer_settings(self._optimizer) | {"loss_scale": self._scale}

    def _update(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self._masters is not None:
            self._masters.take_gradients(scale=self._scale, keep=self._keeps_gradients)
        else:
            unscale(self._updated, self._scale)
        self._clip_all()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=self._masters is not None or not self._keeps_gradients)
        if self._masters is not None:
            self._masters.give_weights()


def loss_scale(trial: TrialSpec) -> float:
    """Factor of the loss before the backward pass."""
    return FP16_LOSS_SCALE if trial.precision is Precision.FP16 else 1.0


class Single(TorchLoop):
    """The loop itself."""
