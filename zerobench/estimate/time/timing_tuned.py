"""Seconds of a decoder's matrices in fine-tuning: frozen ones have no gradient of their own, adapters thin products.

A weight's backward pass is a product for its own gradient, where it is trained, and one that passes a gradient on,
where something before it is trained (zerobench.config.trial.backward). A quantised matrix is made whole for each of its
passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zerobench.estimate.clock.device import Device
from zerobench.estimate.clock.kernels import FP32_BYTES, WORD_BYTES, fp32_gemm_s, linear_s, moved_s


class TunedMatrix(NamedTuple):
    """A matrix as fine-tuning uses it."""

    inputs: int
    outputs: int
    is_trained: bool
    passes_on: bool
    """Whether the gradient of its input is computed."""
    rank: int = 0
    """Of an adapter beside it; 0: none."""
    is_wide: bool = False
    """Whether that is in fp32."""

    def products_s(self, device: Device, tokens: float) -> tuple[float, float]:
        """Of its own forward and backward pass."""
        return linear_s(device, tokens, self.inputs, self.outputs, self.is_trained, self.passes_on)


@dataclass(frozen=True)
class Tuned:
    """What of a decoder is trained. Matrices are counted over all of its blocks."""

    matrices: Mapping[TunedMatrix, int]
    head: TunedMatrix
    passed_share: float
    """Of the blocks, by those that a backward pass comes to."""
    attending_share: float
    """Of the blocks, by those through whose attention it passes."""
    base: str | None = None
    """How frozen matrices are quantised."""

    def matrices_s(self, device: Device, tokens: int) -> tuple[float, float]:
        """Of all blocks, forward and backward."""
        times = [
            (count * forward, count * backward)
            for matrix, count in self.matrices.items()
            for forward, backward in self._times(device, tokens, matrix)
        ]
        return sum(forward for forward, _ in times), sum(backward for _, backward in times)

    @property
    def launches(self) -> float:
        """Kernels that a block launches, times those of a block without adapters. One in fp32 has six forward and nine
        backward where another has four and six.
        """
        every = sum(self.matrices.values())
        beside = ((1.5 if matrix.is_wide else 1) * count for matrix, count in self.matrices.items() if matrix.rank)
        return 1 + sum(beside) / every

    def _times(self, device: Device, tokens: int, matrix: TunedMatrix) -> list[tuple[float, float]]:
        whole = moved_s(device, matrix.inputs * matrix.outputs * _MADE_WHOLE_BYTES[self.base])
        times = [matrix.products_s(device, tokens), (whole, whole * matrix.passes_on)]
        if not matrix.rank:
            return times
        if matrix.is_wide:
            return [*times, _wide_adapter_s(device, tokens, matrix, casts_sum=self.base is None)]
        return [*times, _adapter_s(device, tokens, matrix)]


_MADE_WHOLE_BYTES = {None: 0.0, "nf4": 0.52 + WORD_BYTES, "int8": 1 + WORD_BYTES}
"""Moved for each element of a quantised matrix when it is made whole: its codes are read, 16 bits are written."""


def _adapter_s(device: Device, tokens: int, matrix: TunedMatrix) -> tuple[float, float]:
    """An adapter's products are so thin that they take what their bytes take.

    Forward, A reads the input and B, the scaling and the addition pass over the output six times; backward, the scaling
    and both gradients of B read the output's gradient or write it, four times, and A's two and the addition to the
    base's pass over the input five times, or once where it has none to pass on (rank/training/adapters.py, PEFT's
    alike).
    """
    inputs, outputs, rank = matrix.inputs, matrix.outputs, matrix.rank
    words = (inputs + 2 * rank + 6 * outputs, (5 if matrix.passes_on else 1) * inputs + 4 * rank + 4 * outputs)
    forward, backward = (moved_s(device, tokens * word * WORD_BYTES) for word in words)
    return forward, backward


_CAST = WORD_BYTES + FP32_BYTES
"""Bytes that a cast of an element moves, in either direction."""


def _wide_adapter_s(device: Device, tokens: int, matrix: TunedMatrix, *, casts_sum: bool) -> tuple[float, float]:
    """The same of an adapter in fp32, whose products are too (rank/training/adapters.py).

    Forward the input is cast, B's product scaled, and either added to the base's and the sum cast (`casts_sum`), or
    cast and then added. Backward the output's gradient is cast, scaled, and where the sum was in fp32 cast back for the
    base; A's passed gradient is cast and added to the base's.
    """
    inputs, outputs, rank = matrix.inputs, matrix.outputs, matrix.rank
    scaled, added = 2 * FP32_BYTES, 3 * WORD_BYTES
    summed = WORD_BYTES + 2 * FP32_BYTES + _CAST if casts_sum else _CAST + added
    forward = moved_s(device, tokens * (_CAST * inputs + (scaled + summed) * outputs))
    forward += fp32_gemm_s(device, tokens, rank, inputs) + fp32_gemm_s(device, tokens, outputs, rank)
    passed = (_CAST + added) * inputs if matrix.passes_on else 0
    backward = moved_s(device, tokens * (passed + (scaled + (2 if casts_sum else 1) * _CAST) * outputs))
    backward += fp32_gemm_s(device, outputs, rank, tokens) + fp32_gemm_s(device, tokens, rank, outputs)
    backward += fp32_gemm_s(device, rank, inputs, tokens)
    return forward, backward + (fp32_gemm_s(device, tokens, inputs, rank) if matrix.passes_on else 0.0)
