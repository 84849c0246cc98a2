"""torch's PipelineStage that tells when it computes, what it moves, and which tensors pass between stages."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from zerobench.common.vocabulary import Category, Phase
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.strategies.base import Job, Phases
from zerobench.rank.strategies.stages import Stage


class PhasedStage(PipelineStage):
    """One pass of one micro-batch is one phase; what a pass received and will send is counted with it.

    torch keeps a buffer for what each micro-batch of a step receives, activations and gradients, from the first step
    to the end (torch/distributed/pipelining/stage.py, _RecvInfo).
    """

    phases: Phases

    def __init__(self, stage: Stage, job: Job, given: torch.Tensor, made: torch.Tensor) -> None:
        """`given` and `made` say the shapes of what the stage gets and gives, and need no memory."""
        device = job.device.torch_device
        super().__init__(stage, stage.index, len(stage.division), device, input_args=given, output_args=made)
        self._job = job

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """The forward pass of one micro-batch."""
        with self.phases.phase(Phase.FORWARD):
            self._heard("recv", self.args_recv_info[fwd_chunk_id])
            try:
                output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
            except RuntimeError as error:
                raise error.__cause__ or error from None  # torch puts a sentence around what went wrong
            if not self.is_last:
                self._moved("send", output)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """The backward pass of one micro-batch."""
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
        """The buffers that activations and gradients are received in, and gradients on their way back."""
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
        """All stages have said their shapes, so nobody asks the others whether theirs must be found out."""
        del has_backward, received_acc
        return _yes()

    def _warmup_backward_result(self, received_result: torch.Tensor | None = None) -> torch.Tensor:
        """The same, on its way back."""
        del received_result
        return _yes()

    def _setup_forward_recv_info(self, num_microbatches: int, has_backward: bool) -> None:
        """Zeros and not whatever memory held: where the other ranks are not there (solo), nothing is received."""
        super()._setup_forward_recv_info(num_microbatches, has_backward)
        _zero(self.args_recv_info)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        """As for forward passes."""
        super()._setup_backward_recv_info(num_microbatches)
        _zero(self.grad_recv_info)


def _yes() -> torch.Tensor:
    return torch.ones((), dtype=torch.int32)


def _zero(received: Any) -> None:
    for infos in received.values():
        for info in infos:
            if info.buffer is not None:
                info.buffer.zero_()
