"""Attention as the GPU's fused kernels leave it in memory: outputs and saved tensors, and not one s x s matrix.

torch's scaled_dot_product_attention chooses a kernel by device; on a device that it does not know it would compute the
textbook formula and save its s x s matrices. This stands in for what it chooses on CUDA (ATen/native/transformers/
cuda/sdp_utils.cpp): the flash kernel for 16-bit tensors without an explicit mask, whose heads torch pads to multiples
of 8; the memory-efficient one otherwise; and the textbook formula where that one is asked for what it does not take,
fewer key heads than query heads or heads that are no multiple of 16 bytes (minimum_gemm_alignment).
Sizes: flash_attn/flash_api.cpp (mha_fwd, mha_bwd) and transformers/cuda/attention.cu, attention_backward.cu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 -- torch's own habit
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

_ALIGNMENT_BYTES = 16
_FLASH_MULTIPLE = 8
_HALF = (torch.float16, torch.bfloat16)
_count: list[Callable[[int], None]] = []
_textbook = torch._scaled_dot_product_attention_math


def install(count_flops: Callable[[int], None]) -> None:
    """Put the stand-in where models look for the function, for the rest of the process."""
    _count[:] = [count_flops]
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
    flash = attn_mask is None and query.dtype in _HALF
    if not flash and (key.shape[1] != query.shape[1] or query.shape[-1] * query.element_size() % _ALIGNMENT_BYTES):
        return _textbook(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
    dim = query.shape[-1]
    if flash and dim % _FLASH_MULTIPLE:
        query, key, value = (
            F.pad(tensor, (0, _FLASH_MULTIPLE - dim % _FLASH_MULTIPLE)) for tensor in (query, key, value)
        )
    output: torch.Tensor = _FusedAttention.apply(query, key, value, attn_mask, flash)  # type: ignore[no-untyped-call]
    return output[..., :dim] if flash else output


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        flash: bool,
    ) -> torch.Tensor:
        """Q [b, h, s, d], k and v [b, h_kv, s_kv, d] to the output [b, h, s, d], laid out as [b, s, h, d]."""
        batch, heads, length, dim = query.shape
        output = query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)
        rows = length if flash else _round_up(length, 32)
        logsumexp = query.new_empty((batch, heads, rows), dtype=torch.float32)
        # Flash gives out a generator's state and a number that it never fills; the other one's lie on the host.
        random_state = [query.new_empty(shape, dtype=torch.int64) for shape in ((2,), ()) if flash]
        kept = [t for t in (mask,) if t is not None]
        ctx.save_for_backward(query, key, value, output, logsumexp, *random_state, *kept)
        ctx.flash = flash
        _count[0](sdpa_flop_count(query.shape, _expanded(key, heads), _expanded(value, heads)))
        ctx.dim = dim
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Gradients of q, k, v; with fewer key heads the kernel first fills them for every query head."""
        query, key, value, *_ = ctx.saved_tensors
        batch, heads, length, dim = query.shape
        rows = _round_up(length, 128) if ctx.flash else length
        shapes = query.shape, _expanded(key, heads), _expanded(value, heads)
        _count[0](sdpa_backward_flop_count(gradient.shape, *shapes))
        delta = query.new_empty((batch, heads, rows), dtype=torch.float32)
        accumulated = None
        if ctx.flash:
            accumulated = query.new_empty((batch, rows, heads, _round_up(dim, 32)), dtype=torch.float32)
        grad_query = _like(query)
        grad_key, grad_value = _key_gradient(key, heads), _key_gradient(value, heads)
        if key.shape[1] != heads:
            grad_key, grad_value = _like(key), _like(value)
        del delta, accumulated, gradient
        return grad_query, grad_key, grad_value, None, None


def _like(tensor: torch.Tensor) -> torch.Tensor:
    batch, heads, length, dim = tensor.shape
    return tensor.new_empty((batch, length, heads, dim)).transpose(1, 2)


def _key_gradient(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    batch, _, length, dim = tensor.shape
    return tensor.new_empty((batch, length, heads, dim)).transpose(1, 2)


def _expanded(tensor: torch.Tensor, heads: int) -> torch.Size:
    batch, _, length, dim = tensor.shape
    return torch.Size((batch, heads, length, dim))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
