"""Layers split over ranks by torch.distributed.pipelining: each rank holds a stage, micro-batches pass through all.

Forward passes send hidden states to the next rank, backward passes their gradients to the previous one. Two schedules:

- gpipe (Huang et al., arXiv 1811.06965): all forward passes of the step, then all backward passes. A rank keeps the
  activations of every micro-batch.
- 1f1b (PipeDream-Flush; Narayanan et al., arXiv 2104.04473, section 2.2): after a warm-up one backward pass after each
  forward pass. Stage r of p keeps the activations of at most p - r micro-batches.

In both a rank is idle while the pipeline fills and drains, (p - 1) / (m + p - 1) of the step with m micro-batches and
equally long stages. This is measured: between its phases a rank only waits for other ranks. All ranks update once the
last gradient is complete, and wait for their common norm before the update begins.

Stages are divided by hand (stages.py), since torch's tracer does not reproduce the model's losses.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils._python_dispatch import _disable_current_modes

from zerobench.common.vocabulary import Category, Phase
from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.derived.pipeline import micro_batches_in_flight
from zerobench.config.trial.trial import PipelineSchedule, TrialSpec
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.strategies.base import Job, Phases
from zerobench.rank.strategies.stages import Stage, build_stage
from zerobench.rank.strategies.torch_loop import TorchLoop
from zerobench.rank.training.mixed_precision import gradients_of
from zerobench.rank.training.model import DTYPES


class PhasedStage(PipelineStage):
    """torch's PipelineStage, with one phase for each pass of a micro-batch, including what it receives and sends.

    torch keeps receive buffers for activations and gradients of each micro-batch from the first step to the end
    (torch/distributed/pipelining/stage.py, _RecvInfo).
    """

    phases: Phases

    def __init__(self, stage: Stage, job: Job, given: torch.Tensor, made: torch.Tensor) -> None:
        """`given` and `made`: shapes of the stage's input and output, on the meta device."""
        device = job.device.torch_device
        super().__init__(stage, stage.index, len(stage.division), device, input_args=given, output_args=made)
        self._job = job

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass of one micro-batch."""
        with self.phases.phase(Phase.FORWARD):
            self._heard("recv", self.args_recv_info[fwd_chunk_id])
            try:
                output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
            except RuntimeError as error:
                raise error.__cause__ or error from None  # torch wraps the original error in a sentence
            if not self.is_last:
                self._moved("send", output)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass of one micro-batch."""
        with self.phases.phase(Phase.BACKWARD):
            self._heard("recv", self.grad_recv_info[bwd_chunk_id])
            super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
            if not self.is_first:
                for gradient in self.bwd_cache[bwd_chunk_id]:
                    self._moved("send", gradient)

    def _heard(self, kind: str, infos: Any) -> None:
        for info in infos:
            self._moved(kind, info.buffer)

    def _moved(self, kind: str, tensor: Any) -> None:
        if tensor is not None:
            self._job.heard(kind, dist.get_world_size(), tensor.nbytes)

    def walk(self) -> Iterator[NamedTensor]:
        """Receive buffers of activations and gradients, and gradients that are still to be sent."""
        for infos in (*self.args_recv_info.values(), *self.grad_recv_info.values()):
            for info in infos:
                for tensor in () if info.buffer is None else (info.buffer, info.buffer.grad):
                    if tensor is not None:
                        yield NamedTensor(tensor, Category.PIPELINE_BUFFERS)
        for gradients in self.bwd_cache.values():
            yield from (
                NamedTensor(gradient, Category.PIPELINE_BUFFERS) for gradient in gradients if gradient is not None
            )

    def _warmup_forward_vote(self, has_backward: bool, received_acc: torch.Tensor | None = None) -> torch.Tensor:
        """Vote without communication: all stages know their shapes already."""
        del has_backward, received_acc
        return _yes()

    def _warmup_backward_result(self, received_result: torch.Tensor | None = None) -> torch.Tensor:
        """Result of that vote, without communication."""
        del received_result
        return _yes()

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        """Zero the receive buffers, since nothing is received if the other ranks are absent (solo)."""
        super()._setup_forward_recv_info(num_microbatches, has_backward)
        _zero(self.args_recv_info)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        """Zero the receive buffers of gradients for the same reason."""
        super()._setup_backward_recv_info(num_microbatches)
        _zero(self.grad_recv_info)


def _yes() -> torch.Tensor:
    return torch.ones((), dtype=torch.int32)


def _zero(received: Any) -> None:
    for infos in received.values():
        for info in infos:
            if info.buffer is not None:
                info.buffer.zero_()


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
        stage_input, stage_output = _shapes(
            self._stage, trial.micro_batch_size, trial.sequence_length, DTYPES[trial.precision]
        )
        self._passes = PhasedStage(self._stage, self.job, stage_input, stage_output)
        self._schedule = _SCHEDULES[trial.pipeline_schedule](
            self._passes, n_microbatches=micro_batches_of_share(trial), loss_fn=self._loss, scale_grads=False
        )
        return self._stage

    def step(self, micro_batches: Sequence[torch.Tensor], learning_rate: float, phases: Phases) -> torch.Tensor:
        """Run all passes of the schedule, then update once. Returns the loss on the last rank, elsewhere 0."""
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
        """Loss of one micro-batch, scaled to its share of the step; called only on the last rank."""
        with self._phases.phase(Phase.FORWARD):
            loss = self._stage.loss(logits, tokens)
            self._phases.mark_loss(loss)
            self._losses.append(loss.detach())
            return loss * self._share

    def _add_tied_gradients(self) -> int:
        """Sum the two gradients of a tied embedding; returns the reduced bytes."""
        if self._tied is None or self._tied.grad is None or dist.get_world_size() == 1:
            return 0
        dist.all_reduce(self._tied.grad, group=self._ends)
        return self._tied.grad.nbytes

    def _meet(self) -> None:
        """Wait for the slowest rank before an update that needs the global norm, rather than within it."""
        if self.job.trial.hyperparameters.gradient_clipping:
            dist.all_reduce(self._nothing())

    def _clip(self, parameters: Sequence[torch.Tensor], largest: float) -> torch.Tensor:
        counted = self._stage.is_first or self._tied is None  # the last rank's tied tensor is a second copy
        others = [p for p, is_shared in zip(parameters, self._is_shared, strict=True) if counted or not is_shared]
        return clip_over_stages(parameters, others, largest)

    def walk(self) -> Iterable[NamedTensor]:
        """Tensors of the loop, tokens of the step, and tensors that pass between stages."""
        yield from super().walk()
        if self._tokens is not None:
            yield NamedTensor(self._tokens, Category.INPUTS)
        yield from self._passes.walk()

    def effective_config(self) -> dict[str, Any]:
        """Settings of the optimizer, and this rank's part of the pipeline."""
        engine = f"torch.distributed.pipelining.{type(self._schedule).__name__}"
        return {**super().effective_config(), "pipeline": {**own_part(self._stage, self.job.trial), "engine": engine}}


def own_part(stage: Stage, trial: TrialSpec) -> dict[str, Any]:
    """Part of the pipeline of `trial` on the rank of `stage`, for its record."""
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
    """Input and output of the stage for one micro-batch, on the meta device, so that torch need not infer them."""
    config: Any = stage.model.config
    with _disable_current_modes():
        hidden = torch.empty(batch, length, config.hidden_size, dtype=dtype, device="meta", requires_grad=True)
        tokens = torch.empty(batch, length, dtype=torch.int64, device="meta")
        logits = torch.empty(batch, length, config.vocab_size, dtype=dtype, device="meta", requires_grad=True)
    return tokens if stage.is_first else hidden, logits if stage.is_last else hidden


def _one_batch(micro_batches: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate the micro-batches, since torch's schedules take one tensor and split it again."""
    return torch.cat(list(micro_batches))


@torch.no_grad()
def clip_over_stages(
    parameters: Iterable[torch.Tensor], counted: Iterable[torch.Tensor], largest: float
) -> torch.Tensor:
    """Scale the gradients of this rank's `parameters` so that the global norm over all ranks is at most `largest`.

    Returns the norm before. Each rank contributes the squares of its `counted` parameters, in one all-reduce
    (Megatron-LM, megatron/core/optimizer/clip_grads.py).
    """
    square = torch.nn.utils.get_total_norm(gradients_of(counted)).float() ** 2
    dist.all_reduce(square)
    norm = square.sqrt()
    scale = torch.clamp(largest / (norm + 1e-6), max=1.0)
    for gradient in gradients_of(parameters):
        gradient.mul_(scale.to(gradient.dtype))
    return norm
