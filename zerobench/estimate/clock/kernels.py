"""Seconds of one kernel: matrix products by tiles, fused attention by FLOPs, all else by bytes.

Products of M x K by K x N: the GPU computes tiles of 128 x 256, one a multiprocessor at a time, in waves; the last wave
and tiles at the edge are computed whole (NVIDIA, "Matrix Multiplication Background User's Guide", tile and wave
quantization). A tile's inner loop needs some length to fill its pipeline: K / (K + half length). Where tiles are fewer
than half of the multiprocessors, K is divided among several of them, whose sums in fp32 are written and added up
(cuBLAS's split-K: a 768 x 768 x 16384 takes an H100 38 us, where its 18 tiles would take 168). Matrices with a side
of an odd size, as GPT-2's head of 50257 words, are loaded an element at a time by an older GPU's kernels (`align1`),
others whose rows begin at no multiple of 16 bytes a few at a time. No product takes less than its operands need to pass
through memory once.

Attention: two products forward and five backward (FlashAttention, Dao et al. 2022, arXiv:2205.14135, algorithms 1 and
4), each of 2 L^2 H Q FLOPs a sequence, halved by the causal mask.
"""

from __future__ import annotations

import math

from zerobench.estimate.clock.device import Device
from zerobench.estimate.clock.rates import shipped_rates

TILE_ROWS, TILE_COLUMNS = 128, 256
WORD_BYTES = 2
FP32_BYTES = 4
"""Of an element in fp32, as a product's partial sums are."""
FP32_TILE = 32
"""The narrowest tile of a product in fp32."""
SHORTEST_PART = 256
"""Of an inner dimension that is divided."""


def gemm_s(device: Device, rows: float, columns: float, inner: float) -> float:
    """Seconds of one product in 16 bits."""
    tiles = math.ceil(rows / TILE_ROWS) * math.ceil(columns / TILE_COLUMNS)
    whole = device.sm_count * TILE_ROWS * TILE_COLUMNS

    def split_s(parts: int) -> float:
        waves, length = math.ceil(parts * tiles / device.sm_count), inner / parts
        share = device.rates.gemm_share * length / (length + device.rates.gemm_half_length)
        added = 0.0 if parts == 1 else 2 * parts * rows * columns * FP32_BYTES
        return 2 * waves * whole * length / (device.peak_flops * share) + moved_s(device, added)

    most = int(min(device.sm_count // tiles, inner // SHORTEST_PART))
    computed_s = min(map(split_s, range(1, max(1, most) + 1)))
    if sizes := device.unaligned_sizes.intersection((rows, columns, inner)):
        reached = shipped_rates().today.unaligned_flops_per_s
        unaligned = reached[min(multiple for multiple in reached if any(size % multiple for size in sizes))]
        computed_s = max(computed_s, 2 * rows * columns * inner / (device.sm_count * unaligned))
    return max(computed_s, moved_s(device, WORD_BYTES * (rows * inner + inner * columns + rows * columns)))


def fp32_gemm_s(device: Device, rows: float, columns: float, inner: float) -> float:
    """Seconds of one product in fp32, which torch keeps off the tensor cores (`allow_tf32`): of a thin one by its
    bytes, of a wide one by its FLOPs, in tiles that are 32 wide or more.
    """
    achieved = shipped_rates().today.fp32
    moved = moved_s(device, FP32_BYTES * (rows * inner + inner * columns + rows * columns)) / achieved.memory_share
    if device.fp32_flops is None:
        return moved
    tiled = math.prod(FP32_TILE * math.ceil(size / FP32_TILE) for size in (rows, columns))
    return max(moved, 2 * tiled * inner / (device.fp32_flops * achieved.peak_share))


def linear_s(
    device: Device, tokens: float, inputs: float, outputs: float, is_trained: bool = True, passes_on: bool = True
) -> tuple[float, float]:
    """Seconds of a linear layer's forward and backward pass: by its weight where it is trained, by its input where
    that is asked for the gradient that it `passes_on`.
    """
    own = gemm_s(device, inputs, outputs, tokens) if is_trained else 0.0
    passed = gemm_s(device, tokens, inputs, outputs) if passes_on else 0.0
    return gemm_s(device, tokens, outputs, inputs), passed + own


def counted_attention_s(device: Device, forward_flops: float, backward_flops: float) -> tuple[float, float]:
    """The same by the FLOPs that torch counts, of which the causal mask hides half."""
    rates, peak = device.rates, 2 * device.peak_flops
    return forward_flops / (peak * rates.attention_forward_share), backward_flops / (
        peak * rates.attention_backward_share
    )


def attention_s(device: Device, tokens: float, positions: float, width: float) -> tuple[float, float]:
    """Seconds of causal attention forward and backward; `width` is heads times their size."""
    forward, backward = attention_flops(tokens, positions, width)
    return counted_attention_s(device, forward, backward)


def attention_flops(tokens: float, positions: float, width: float) -> tuple[float, float]:
    """As torch counts them, forward and backward."""
    product = 2 * tokens * positions * width
    return 2 * product, 5 * product


def moved_s(device: Device, nbytes: float) -> float:
    """Seconds in which elementwise work moves so many bytes through device memory."""
    return nbytes / (device.memory_bytes_per_s * device.rates.memory_share)


def moved_by_element_s(device: Device, nbytes: float) -> float:
    """The same by threads that move an element at a time."""
    return max(moved_s(device, nbytes), nbytes / (device.sm_count * shipped_rates().today.by_element_bytes_per_s))
