"""A GPU as kernels see it: the datasheet's peaks, and what is achieved of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.overheads import StepConstants
from zerobench.config.trial.trial import Precision
from zerobench.estimate.clock.rates import HostRates, Rates, kind_of, shipped_rates


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
    host: HostRates | None = None
    """What issues its work; None: it is never late."""
    kind: str = ""
    """Of the shipped rates, whose chip it is or is taken for; empty for what is no GPU."""
    fp32_flops: float | None = None
    """Of matrix products in fp32, without tensor cores; None: not known."""
    unaligned_sizes: frozenset[int] = frozenset()
    """Of a model's matrices: rows that begin at no multiple of 16 bytes."""

    def calibrated(self, constants: StepConstants) -> Device:
        """The same where a machine's own are known; no kernel gets more than all of the GPU's peak."""
        shares = ("gemm_share", "attention_forward_share", "attention_backward_share")
        words = ("forward_words", "backward_words", "loss_words")
        achieved = {name: min(1.0, getattr(self.rates, name) / constants.slower) for name in shares}
        achieved |= {name: getattr(self.rates, name) * constants.slower for name in words}
        host = {"launch_s": constants.launch_s, "slower": constants.python_slower}
        return replace(
            self,
            rates=self.rates.model_copy(update=achieved | {"step_s": constants.step_s, "micro_batch_s": 0.0}),
            host=None if self.host is None else self.host.model_copy(update=host),
        )


def device_of(gpu: Gpu, precision: Precision, rates: Rates | None = None) -> Device | None:
    """`gpu` at `precision`; None where its datasheet leaves something out, and for fp32, which was not fitted."""
    peaks = {str(dtype): rate for dtype, rate in gpu.peak_tflops.items()}
    peak, fp32 = peaks.get(precision.value), peaks.get(Precision.FP32.value)
    if precision is Precision.FP32 or peak is None or gpu.memory_gb_per_s is None or gpu.sm_count is None:
        return None
    (kind, assumptions), file = kind_of(gpu), shipped_rates()
    return Device(
        peak * 1e12,
        gpu.memory_gb_per_s * 1e9,
        gpu.sm_count,
        rates or file.kinds[kind],
        assumptions,
        file.host,
        kind,
        None if fp32 is None else fp32 * 1e12,
    )
