"""Kernels of a replayed step by class: their FLOPs, the least bytes that they move, and the seconds that they take.

A roofline holds a kernel's FLOP/s against the lesser of the matrix peak and its FLOPs per byte times the memory's
bandwidth (Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009). Bytes are the least there are: each operand
is read once, and each result written once. Of a product of M x K by K x N that is M K + K N + M N words; of attention
in tiles (FlashAttention, arXiv:2205.14135) queries, keys, values and the output forward, and those, the output's
gradient and three gradients of its own backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zerobench.estimate.clock.device import Device
from zerobench.estimate.clock.kernels import WORD_BYTES, attention_flops, counted_attention_s, gemm_s
from zerobench.estimate.clock.replay import UPDATE_CLASS, Pace
from zerobench.estimate.clock.trace import UPDATE, Kernels, Product, StepTrace


class Widths(Protocol):
    """Of a decoder's attention."""

    @property
    def qkv_width(self) -> int: ...

    @property
    def attention_width(self) -> int: ...


@dataclass(frozen=True)
class KernelClass:
    """Kernels of one class in one step."""

    kind: str
    """As a timeline has it: products, attention, elementwise, update."""
    name: str
    seconds: float
    flops: float | None = None
    """Done, without what the causal mask hides; None: not counted, of kernels that only memory bounds."""
    moved_bytes: float | None = None
    """None where `flops` is."""

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte."""
        return None if self.flops is None or not self.moved_bytes else self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float | None:
        return None if self.flops is None else self.flops / self.seconds


@dataclass(frozen=True)
class Roofline:
    """What bounds kernels on a GPU, and where those of a step lie."""

    device: Device
    classes: Sequence[KernelClass]
    """The longest first."""

    def most_flops(self, intensity: float) -> float:
        """The most FLOP/s at so many FLOPs per byte."""
        return min(self.device.peak_flops, intensity * self.device.memory_bytes_per_s)


def kernel_classes(trace: StepTrace, pace: Pace, decoder: Widths, tokens: int, positions: int) -> list[KernelClass]:
    """The classes of one step: products by shape, attention forward and backward, element-wise kernels, the update.

    `tokens` of a micro-batch, in sequences of `positions`. All that the update runs is one class, as in a timeline.
    """
    products: dict[Product, int] = defaultdict(int)
    counted, elementwise_s, update_s = [0, 0], 0.0, 0.0
    for phase, item in trace.in_phases():
        if not isinstance(item, Kernels):
            continue
        work = trace.works[item.work]
        seconds = pace.work_s(phase, work)
        if phase == UPDATE:
            update_s += sum(seconds.values())
            continue
        elementwise_s += seconds.get("elementwise", 0.0)
        counted = [before + flops for before, flops in zip(counted, work.attention, strict=True)]
        for shape, count in work.products:
            products[shape] += count
    classes = [
        *(_product_class(shape, count, pace) for shape, count in products.items()),
        *_attention_classes(counted, pace, decoder, tokens, positions),
        KernelClass("elementwise", "element-wise", elementwise_s),
        KernelClass(UPDATE_CLASS, "update", update_s),
    ]
    return sorted((kernels for kernels in classes if kernels.seconds), key=lambda kernels: -kernels.seconds)


def _product_class(shape: Product, count: int, pace: Pace) -> KernelClass:
    rows, columns, inner = shape
    words = rows * inner + inner * columns + rows * columns
    return KernelClass(
        "products",
        f"{rows:,} x {inner:,} x {columns:,}",
        count * gemm_s(pace.device, *shape) * pace.passes_slower,
        2.0 * count * rows * columns * inner,
        float(count * words * WORD_BYTES),
    )


def _attention_classes(
    counted: Sequence[int], pace: Pace, decoder: Widths, tokens: int, positions: int
) -> list[KernelClass]:
    """Forward and backward: of half of the counted FLOPs, and of as many blocks as those are of."""
    block_bytes = tokens * WORD_BYTES * (decoder.qkv_width + decoder.attention_width)
    of_block = attention_flops(tokens, positions, decoder.attention_width)
    times = counted_attention_s(pace.device, *counted)
    return [
        KernelClass(
            "attention",
            f"attention {name}",
            seconds * pace.passes_slower,
            flops / 2,
            reads * block_bytes * flops / block,
        )
        for name, reads, flops, block, seconds in zip(
            ("forward", "backward"), (1, 2), counted, of_block, times, strict=True
        )
    ]
