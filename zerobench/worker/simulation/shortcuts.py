"""Work of DeepSpeed's that moves no byte in a simulation and whose cost grows with the world: done shorter here.

Each stands for the function that it replaces, allocates and frees what that one does, in the same order, and is named
with its source. A test holds each against the original.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def install() -> None:
    """Replace them for the rest of the process."""
    from deepspeed.runtime.zero import partition_parameters

    partition_parameters.AllGatherCoalescedHandle.wait = _wait
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("deepspeed"):
            for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
                if hasattr(module, name):
                    setattr(module, name, _agreed)


def _agreed(*_: Any, **__: Any) -> None:
    """runtime/zero/utils.py compares integers with other ranks: there are none."""


def _wait(self: Any, handle_dependency: bool = True) -> None:  # noqa: FBT001, FBT002 -- DeepSpeed's signature
    """AllGatherCoalescedHandle.wait (runtime/zero/partition_parameters.py) without a view for each rank.

    The original narrows every rank's part out of the gathered tensor, N views a parameter, to concatenate them.
    """
    from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus

    if self.complete:
        return
    self.allgather_handle.wait()
    if self.quantization:
        raise NotImplementedError("quantized all-gather is not simulated")
    for param in self.params:
        whole = torch.empty(param.ds_numel, dtype=self.partitions[0].dtype, device=self.partitions[0].device)
        param.data = whole.view(param.ds_shape).to(param.ds_tensor.dtype)
        param.ds_status = ZeroParamStatus.AVAILABLE
    self.complete = True
    if not handle_dependency:
        AllGatherCoalescedHandle.data_buffer.append(self.partitions)
