"""Layers split over ranks by torch.distributed.pipelining: each rank holds a stage, micro-batches pass through all.

Forward passes hand hidden states to the next rank, backward passes their gradients to the one before. Two schedules:

- gpipe (Huang et al., arXiv 1811.06965): all forward passes of the step, then all backward passes. A rank keeps the
  activations of every micro-batch.
- 1f1b (PipeDream-Flush; Narayanan et al., arXiv 2104.04473, section 2.2): after a warm-up one backward pass after each
  forward pass. Stage r of p keeps the activations of p - r micro-batches at most.

In both a rank is idle while the pipeline fills and drains, (p - 1) / (m + p - 1) of the step with m micro-batches and
stages that take equally long. It is measured: between its phases a rank does nothing but wait for others and for what
they send. All update when the last gradient is there, and their common norm is waited for before the update begins.

Stages are made by hand (stages.py) and not by torch's tracer, whose losses are not those of the model.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.utils._python_dispatch import _disable_current_modes

from zerobench.common.vocabulary import Category, Phase
from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.derived.pipeline import micro_batches_in_flight
from zerobench.config.trial.trial import PipelineSchedule, TrialSpec
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.strategies.base import Phases
from zerobench.rank.strategies.phased_stage import PhasedStage
from zerobench.rank.strategies.stages import Stage, build_stage
from zerobench.rank.strategies.torch_loop import TorchLoop
from zerobench.rank.training.mixed_precision import gradients_of
from zerobench.rank.training.model import DTYPES

_SCHEDULES: dict[PipelineSchedule, Any] = {
    PipelineSchedule.GPIPE: ScheduleGPipe,
    PipelineSchedule.ONE_F_ONE_B: Schedule1F1B,
}


class Pipeline(TorchLoop):
    """The torch loop over the stage of this rank, its passes in the order of a schedule."""

    waits_between_phases = True
    _is_divided = True
    _tokens: torch.Tensor | None = None
    _phases: Phases

    def build(self) -> None:
        """Build this rank's stage, its optimizer and the schedule."""
        super().build()
        self._is_shared = [parameter is self._tied for parameter in self.module.parameters()]
        self._ends = dist.new_group([0, dist.get_world_size() - 1]) if self._stage.is_tied else None

    def _build_module(self) -> torch.nn.Module:
        self._stage = build_stage(self.job, dist.get_rank(), self.job.trial.world_size)
        self._tied = self._stage.tied_weight()
        self.whole_parameters = self._stage.whole_parameters
        model: torch.nn.Module = self._stage.model
        return model

    def _wrap(self) -> Callable[..., Any]:
        trial = self.job.trial
        given, made = _shapes(self._stage, trial.micro_batch_size, trial.sequence_length, DTYPES[trial.precision])
        self._passes = PhasedStage(self._stage, self.job, given, made)
        self._schedule = _SCHEDULES[trial.pipeline_schedule](
            self._passes, n_microbatches=micro_batches_of_share(trial), loss_fn=self._loss, scale_grads=False
        )
        return self._stage

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """All passes of the step by the schedule, then one update. Returns the loss on the last rank, elsewhere 0."""
        self._phases = self._passes.phases = phases
        self._share = self._scale / len(micro_batches)
        self._losses: list[torch.Tensor] = []
        self._tokens = _one_batch(micro_batches) if self._stage.is_first or self._stage.is_last else None
        self._schedule.step(
            *([self._tokens] if self._stage.is_first else []),
            target=self._tokens if self._stage.is_last else None,
            return_outputs=False,
        )
        self._tokens = None
        shared_bytes = self._add_tied_gradients()
        self._meet()
        with phases.phase(Phase.STEP):
            if shared_bytes:
                self.job.heard("all_reduce", 2, shared_bytes)
            self._update(learning_rate)
        return torch.stack(self._losses).mean() if self._losses else self._nothing()

    def _nothing(self) -> torch.Tensor:
        return torch.zeros((), device=self.job.device.torch_device)

    def _loss(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of one micro-batch, scaled to its share of the step's; called on the last rank alone."""
        with self._phases.phase(Phase.FORWARD):
            loss = self._stage.loss(logits, tokens)
            self._phases.mark_loss(loss)
            self._losses.append(loss.detach())
            return loss * self._share

    def _add_tied_gradients(self) -> int:
        """Sum the two gradients of a tensor that is embedding and head in one; returns the bytes that are reduced."""
        if self._tied is None or self._tied.grad is None or dist.get_world_size() == 1:
            return 0
        dist.all_reduce(self._tied.grad, group=self._ends)
        return self._tied.grad.nbytes

    def _meet(self) -> None:
        """Wait for the slowest rank before an update that needs the norm over all, and not within it."""
        if self.job.trial.hyperparameters.gradient_clipping:
            dist.all_reduce(self._nothing())

    def _clip(self, parameters: Sequence[torch.Tensor], largest: float) -> torch.Tensor:
        counted = self._stage.is_first or self._tied is None  # the last rank holds the tied tensor a second time
        others = [p for p, is_shared in zip(parameters, self._is_shared, strict=True) if counted or not is_shared]
        return clip_over_stages(parameters, others, largest)

    def walk(self) -> Iterable[NamedTensor]:
        """What the loop holds, the tokens of the step, and what passes between the stages."""
        yield from super().walk()
        if self._tokens is not None:
            yield NamedTensor(self._tokens, Category.INPUTS)
        yield from self._passes.walk()

    def effective_config(self) -> dict[str, Any]:
        """The optimizer's settings, and which part of which pipeline this rank is."""
        engine = f"torch.distributed.pipelining.{type(self._schedule).__name__}"
        return {**super().effective_config(), "pipeline": {**own_part(self._stage, self.job.trial), "engine": engine}}


def own_part(stage: Stage, trial: TrialSpec) -> dict[str, Any]:
    """Which part of the pipeline of `trial` a rank is, for its record."""
    blocks = stage.division[stage.index]
    return {
        "schedule": trial.pipeline_schedule.value,
        "stage": stage.index,
        "num_stages": len(stage.division),
        "blocks": [blocks.start, blocks.stop],
        "parameters": sum(parameter.numel() for parameter in stage.model.parameters()),
        "micro_batches": micro_batches_of_share(trial),
        "micro_batches_in_flight": micro_batches_in_flight(trial, stage.index),
    }


def _shapes(stage: Stage, batch: int, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What the stage gets and gives for one micro-batch, without memory: said beforehand, nothing need be tried."""
    config: Any = stage.model.config
    with _disable_current_modes():
        hidden = torch.empty(batch, length, config.hidden_size, dtype=dtype, device="meta", requires_grad=True)
        tokens = torch.empty(batch, length, dtype=torch.int64, device="meta")
        logits = torch.empty(batch, length, config.vocab_size, dtype=dtype, device="meta", requires_grad=True)
    return tokens if stage.is_first else hidden, logits if stage.is_last else hidden


def _one_batch(micro_batches: Sequence[torch.Tensor]) -> torch.Tensor:
    """The micro-batches in one tensor, which torch's schedules take and cut again."""
    return torch.cat(list(micro_batches))


@torch.no_grad()
def clip_over_stages(
    parameters: Iterable[torch.Tensor], counted: Iterable[torch.Tensor], largest: float
) -> torch.Tensor:
    """Scale the gradients of this rank's `parameters` so that the global norm over all ranks is at most `largest`.

    Returns what it was. Of its square each rank adds what its `counted` have, in one all-reduce (Megatron-LM,
    megatron/core/optimizer/clip_grads.py).
    """
    square = torch.nn.utils.get_total_norm(gradients_of(counted)).float() ** 2
    dist.all_reduce(square)
    norm = square.sqrt()
    scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
    for gradient in gradients_of(parameters):
        gradient.mul_(scale.to(gradient.dtype))
    return norm
