"""Tensors that DeepSpeed swaps to NVMe at stage 3, and those too small (runtime/swap_tensor, DeepSpeed 0.19.8)."""

from __future__ import annotations

from zerobench.config.deepspeed.reading import get, smallest_swapped_bytes
from zerobench.config.trial.trial import Offload
from zerobench.estimate.memory.deepspeed.setting import Setting

_ALIGNED_BYTES = 1024
"""Buffers are multiples of it, times aio's intra_op_parallelism (utils.py, AIO_ALIGNED_BYTES)."""


def is_swappable(setting: Setting, elements: int, element: int) -> bool:
    """Return whether a tensor of so many elements of `element` bytes is swapped (is_swappable_tensor)."""
    return elements * element >= smallest_swapped_bytes(setting.case.config)


def swaps_optimizer(setting: Setting) -> bool:
    """Return whether the optimizer's states are swapped (OptimizerSwapper.is_swappable_tensor, by sub-group)."""
    return setting.case.offload_optimizer is Offload.NVME and is_swappable(setting, setting.sub_group, 4)


def aligned(setting: Setting, elements: int, element: int) -> int:
    """Elements of a buffer for `elements` (_io_aligned_numel)."""
    alignment = _ALIGNED_BYTES * int(get(setting.case.config, "aio.intra_op_parallelism")) // element
    return -(-elements // alignment) * alignment
