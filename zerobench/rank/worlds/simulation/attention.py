"""Memory of the GPU's fused attention kernels: outputs and saved tensors, without any s x s matrix.

torch's scaled_dot_product_attention chooses a kernel by device; on an unknown device it would compute the textbook
formula and save its s x s matrices. This module follows its choice on CUDA (ATen/native/transformers/cuda/
sdp_utils.cpp). For 16-bit tensors: cuDNN's kernel if the GPU prefers it, with or without an explicit mask, or the flash
kernel without a mask, whose heads torch pads to multiples of 8. Otherwise the memory-efficient kernel. The textbook
formula for inputs that this one does not support: fewer key heads than query heads, or heads that are no multiple of 16
bytes (minimum_gemm_alignment).

Sizes: flash_attn/flash_api.cpp (mha_fwd, mha_bwd), transformers/cuda/attention.cu and attention_backward.cu; cuDNN's
from cudnn/MHA.cpp on the emulated GPU. cuDNN's own workspaces are only known from a GPU: the one of backward with
grouped heads was measured on an H100 (emulator/c/dnn.c).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own habit
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from zerobench.rank.training.recomputation import attention_results, is_kept

_ALIGNMENT_BYTES = 16
_FLASH_MULTIPLE = 8
_HALF = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
"""Largest head of cuDNN and flash."""
_CUDNN_OWN_BYTES = 256
"""Workspace of cuDNN's plan that sums grouped heads."""
_MOST_SEQUENCES = 65_535
"""torch's limit for cuDNN; above it torch takes flash, whose grid does not support more either."""
_CUDNN_MAJORS = (9, 10)
"""Compute capabilities on which torch prefers cuDNN's kernel (check_prefer_cudnn_attention)."""
_count: list[Callable[[int, bool], None]] = []
"""Called with FLOPs, and whether they belong to the backward pass."""
_prefers_cudnn = [False]
_textbook = torch._scaled_dot_product_attention_math


class Kernel(Enum):
    """Kernels among which torch chooses."""

    CUDNN = auto()
    FLASH = auto()
    EFFICIENT = auto()
    TEXTBOOK = auto()


def install(count_flops: Callable[[int, bool], None], compute_capability: str | None = None) -> None:
    """Replace torch's function, for the rest of the process."""
    _count[:] = [count_flops]
    _prefers_cudnn[:] = [compute_capability is not None and int(compute_capability.split(".")[0]) in _CUDNN_MAJORS]
    F.scaled_dot_product_attention = _attention


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,  # drawn within the kernel: no mask is kept
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    kernel = _choice(query, key, attn_mask is not None)
    if kernel is Kernel.TEXTBOOK:
        return _textbook(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    if kernel is Kernel.FLASH and query.shape[0] > _MOST_SEQUENCES:
        raise RuntimeError(f"CUDA error: invalid configuration argument: attention over {query.shape[0]:,} sequences")
    dim = query.shape[-1]
    if kernel is Kernel.FLASH and dim % _FLASH_MULTIPLE:
        added = _FLASH_MULTIPLE - dim % _FLASH_MULTIPLE
        query, key, value = (F.pad(tensor, (0, added)) for tensor in (query, key, value))
    output: torch.Tensor = _FusedAttention.apply(query, key, value, attn_mask, kernel)  # type: ignore[no-untyped-call]
    return output[..., :dim] if kernel is Kernel.FLASH else output


def _choice(query: torch.Tensor, key: torch.Tensor, has_mask: bool) -> Kernel:
    """Choose the kernel as torch does, for values of the same head size."""
    dim, is_half = query.shape[-1], query.dtype in _HALF
    if is_half and dim <= _LARGEST_HEAD:
        if _prefers_cudnn[0] and dim % _FLASH_MULTIPLE == 0 and query.shape[0] <= _MOST_SEQUENCES:
            return Kernel.CUDNN
        if not has_mask:
            return Kernel.FLASH
    is_aligned = dim * query.element_size() % _ALIGNMENT_BYTES == 0
    return Kernel.EFFICIENT if is_aligned and key.shape[1] == query.shape[1] else Kernel.TEXTBOOK


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        kernel: Kernel,
    ) -> torch.Tensor:
        """Map q [b, h, s, d], k and v [b, h_kv, s_kv, d] to the output [b, h, s, d], in memory [b, s, h, d]."""
        batch, heads, length, dim = query.shape
        rows = _round_up(length, 32) if kernel is Kernel.EFFICIENT else length
        with attention_results():
            output = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
            logsumexp = query.new_empty((batch, heads, rows), dtype=torch.float32)
            random_state = [query.new_empty(shape, dtype=torch.int64) for shape in _RANDOM_STATE[kernel]]
        masks = [t for t in (mask,) if t is not None]
        ctx.save_for_backward(query, key, value, output, logsumexp, *random_state, *masks)
        ctx.kernel = kernel
        if not is_kept():
            _count[0](sdpa_flop_count(query.shape, _expanded(key, heads), _expanded(value, heads)), False)
        ctx.dim = dim
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return gradients of q, k, v; with fewer key heads, flash first computes them for every query head."""
        query, key, value, *_ = ctx.saved_tensors
        heads = query.shape[1]
        shapes = query.shape, _expanded(key, heads), _expanded(value, heads)
        _count[0](sdpa_backward_flop_count(gradient.shape, *shapes), True)
        if ctx.kernel is Kernel.CUDNN:
            gradients = _like(query), _like(key), _like(value)
            working = [query.new_empty(_cudnn_workspace(query, key), dtype=torch.float32)]
        else:
            working = _accumulators(query, is_flash=ctx.kernel is Kernel.FLASH)
            gradients = _like(query), _like(key, heads), _like(value, heads)
            if key.shape[1] != heads:
                gradients = gradients[0], _like(key), _like(value)
        del working, gradient
        return *gradients, None, None


_RANDOM_STATE: dict[Kernel, tuple[tuple[int, ...], ...]] = {
    Kernel.CUDNN: ((), ()),
    Kernel.FLASH: ((2,), ()),
    Kernel.EFFICIENT: (),
}
"""Shapes of random generator states that are kept on the device. Flash never fills its second one."""


def _accumulators(query: torch.Tensor, *, is_flash: bool) -> list[torch.Tensor]:
    """fp32 temporaries of the backward pass: a number a row, and for flash the gradient of the queries."""
    batch, heads, length, dim = query.shape
    rows = _round_up(length, 128) if is_flash else length
    delta = query.new_empty((batch, heads, rows), dtype=torch.float32)
    if not is_flash:
        return [delta]
    return [delta, query.new_empty((batch, rows, heads, _round_up(dim, 32)), dtype=torch.float32)]


def _cudnn_workspace(query: torch.Tensor, key: torch.Tensor) -> tuple[int]:
    """Shape of cuDNN's workspace: both accumulators, and with grouped heads 16-bit gradients of keys and values for
    every query head.
    """
    batch, heads, length, dim = query.shape
    grouped = 0 if key.shape[1] == heads else _expanded(key, heads).numel() + _CUDNN_OWN_BYTES // 4
    return (batch * heads * length * (dim + 1) + grouped,)


def _like(tensor: torch.Tensor, heads: int | None = None) -> torch.Tensor:
    """Uninitialised tensor like `tensor`, with `heads` heads if given."""
    batch, own, length, dim = tensor.shape
    return tensor.new_empty((batch, length, heads or own, dim)).transpose(1, 2)


def _expanded(tensor: torch.Tensor, heads: int) -> torch.Size:
    batch, _, length, dim = tensor.shape
    return torch.Size((batch, heads, length, dim))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
