"""A GPU as kernels see it: the datasheet's peaks, and what is achieved of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zerobench.spec.hardware import Gpu
from zerobench.spec.trial import Precision
from zerobench.timing.rates import Rates, rates_of


@dataclass(frozen=True)
class Device:
    """One GPU at one precision."""

    peak_flops: float
    """Dense matrix products, FLOP/s."""
    memory_bytes_per_s: float
    sm_count: int
    rates: Rates
    assumptions: Mapping[str, float]
    """What the rates take for granted, and the spread that it brings."""


def device_of(gpu: Gpu, precision: Precision, rates: Rates | None = None) -> Device | None:
    """`gpu` at `precision`; None where its datasheet leaves something out, and for fp32, which was not fitted."""
    peak = {str(dtype): rate for dtype, rate in gpu.peak_tflops.items()}.get(precision.value)
    if precision is Precision.FP32 or peak is None or gpu.memory_gb_per_s is None or gpu.sm_count is None:
        return None
    shipped, assumptions = rates_of(gpu)
    return Device(peak * 1e12, gpu.memory_gb_per_s * 1e9, gpu.sm_count, rates or shipped, assumptions)
