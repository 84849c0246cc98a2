"""Work of DeepSpeed's that moves no byte in a simulation and whose cost grows with the world: done shorter here.

Each stands for the function that it replaces, allocates and frees what that one does, in the same order, and is named
with its source. A test holds each against the original.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes


def agree_with_absent_ranks() -> None:
    """Replace what asks other ranks whether they are alike, and what asks the machine, for the rest of the process."""
    import cpuinfo

    cpuinfo.get_cpu_info = dict  # starts programs to name the processor, which CPUAdam asks for a warning's sake
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("deepspeed"):
            for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
                if hasattr(module, name):
                    setattr(module, name, _agreed)


def install() -> None:
    """Replace them all for the rest of the process."""
    from deepspeed.runtime.zero import partition_parameters, stage3
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from transformers.utils import import_utils

    agree_with_absent_ranks()
    partition_parameters.AllGatherCoalescedHandle.wait = _wait
    stage3.reduce_scatter_coalesced = _reduce_scatter_coalesced
    dist._verify_params_across_processes = _agreed  # type: ignore[attr-defined]
    dist.Reducer._rebuild_buckets = _keep_buckets  # type: ignore[attr-defined, method-assign, assignment]
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached
    ShardingPropagator._propagate_tensor_meta_non_cached = _unseen(propagate)  # type: ignore[method-assign]
    FakeTensor.narrow = _narrow  # type: ignore[method-assign, assignment]
    # transformers makes an explicit mask for tensors without values, since it takes them for a compiler's.
    import_utils.is_fake_tensor = _is_no_tracer


def _agreed(*_: Any, **__: Any) -> None:
    """runtime/zero/utils.py compares integers with other ranks: there are none."""


def _keep_buckets(_reducer: object) -> bool:
    """DDP's Reducer deals gradients into buckets again after the first step, in the order in which they came.

    It asks rank 0 for that order by a tensor's values (csrc/distributed/c10d/reducer.cpp, sync_bucket_indices). Before
    that all gradients lie in one bucket (distributed.py, _ddp_init_helper), so a simulated step reduces as many bytes
    and keeps as many, in one call.
    """
    return False


def _unseen(propagate: Callable[..., Any]) -> Callable[..., Any]:
    """ShardingPropagator._propagate_tensor_meta_non_cached (torch/distributed/tensor/_sharding_prop.py), uncounted.

    It finds the shape of an operation's result with fake tensors of its own; within a simulation it would take the
    simulation's, which stand for memory.
    """

    def propagated(self: Any, schema: Any) -> Any:
        with _disable_current_modes():
            return propagate(self, schema)

    return propagated


def _is_no_tracer(_tensor: object) -> bool:
    """transformers/utils/import_utils.py, is_fake_tensor: nothing is traced here."""
    return False


def _wait(self: Any, handle_dependency: bool = True) -> None:
    """AllGatherCoalescedHandle.wait (runtime/zero/partition_parameters.py) without a view for each rank.

    The original narrows every rank's part out of the gathered tensor, N views a parameter, to concatenate them.
    """
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus

    if self.complete:
        return
    self.allgather_handle.wait()
    if self.quantization:
        self.quantization.quant_handle.wait()
        values = self.quantization.backend.dequantize(self.quantization.quantized_param, self.quantization.scale_buffer)
        self.partitions = [values.to(self.params[0].device)]
    for param in self.params:
        whole = torch.empty(param.ds_numel, dtype=self.partitions[0].dtype, device=self.partitions[0].device)
        param.data = whole.view(param.ds_shape).to(param.ds_tensor.dtype)
        param.ds_status = ZeroParamStatus.AVAILABLE
    self.complete = True
    if not get_accelerator().is_synchronized_device() and not handle_dependency:
        AllGatherCoalescedHandle.data_buffer.append(self.partitions)


def _narrow(self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    """Tensor.narrow; of the N parts of a gathered tensor only this rank's is ever looked at (see `_wait`).

    The others, which `_all_gather_dtype` (runtime/zero/partition_parameters.py) makes one by one, are the whole.
    """
    frame: FrameType = sys._getframe(1)
    if frame.f_code.co_name == "_all_gather_dtype" and start != length * frame.f_locals["rank_in_group"]:
        return self
    return torch.narrow(self, dim, start, length)


@torch.no_grad()
def _reduce_scatter_coalesced(tensors: Sequence[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
    """runtime/comm/coalesced_collectives.py without a view for each rank and tensor."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    padded = [math.ceil(tensor.numel() / world_size) for tensor in tensors]
    first = tensors[0]
    padding: list[torch.Tensor] = []
    if len(tensors) == 1 and first.numel() % world_size == 0:
        buffer = first.view(-1)
    else:
        padding = [
            torch.empty(size, dtype=first.dtype, device=first.device)
            for each in range(world_size)
            for tensor, chunk in zip(tensors, padded, strict=True)
            if (size := chunk - _chunk_numel(tensor, chunk, each)) > 0
        ]
        buffer = torch.empty(sum(padded) * world_size, dtype=first.dtype, device=first.device)
    buffer.div_(world_size)
    own = buffer.narrow(0, rank * sum(padded), sum(padded))
    dist.reduce_scatter_tensor(own, buffer, group=group)
    offsets = [sum(padded[:index]) for index in range(len(padded))]
    parts = [
        own.narrow(0, offset, _chunk_numel(tensor, chunk, rank))
        for tensor, chunk, offset in zip(tensors, padded, offsets, strict=True)
    ]
    del padding  # the original holds it, too, until it returns
    return parts


def _chunk_numel(tensor: torch.Tensor, chunk: int, rank: int) -> int:
    """Elements of `tensor` in the chunk of `rank`; the last ones may be short or empty."""
    return min(max(tensor.numel() - rank * chunk, 0), chunk)
