"""The ZeRO paper's terms for model states, to hold beside what was measured.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
arXiv 1910.02054, section 5 and figure 1. With P parameters, N ranks and mixed-precision Adam each rank keeps
2P (parameters) + 2P (gradients) + 12P (fp32 weights, first and second moment): stage 1 divides the 12P by N,
stage 2 the gradients too, stage 3 the parameters too. The paper has no fp32 terms; the same reasoning gives
4P + 4P + 8P, since no second copy of the weights is needed. Terms are exact quotients: padding is not in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerobench.spec.trial import Optimizer, Precision, TrialSpec


@dataclass(frozen=True)
class PaperTerms:
    """Bytes per rank by the paper, unrounded, and the terms as the paper writes them."""

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    text: str

    @property
    def total_bytes(self) -> float:
        """All model states of one rank."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


def bytes_per_parameter(spec: TrialSpec) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer states per parameter, before anything is divided.

    Adam keeps two fp32 moments, SGD without momentum none; 16-bit training adds fp32 master weights.
    """
    moments = 0 if spec.optimizer is Optimizer.SGD else 8
    return (4, 4, moments) if spec.precision is Precision.FP32 else (2, 2, 4 + moments)


def paper_terms(spec: TrialSpec, num_params: int | None) -> PaperTerms | None:
    """The paper's bytes per rank for `spec`; None for strategies it does not speak of or an unknown size."""
    stage = 0 if spec.strategy == "single" else spec.zero_stage
    if stage is None or num_params is None:
        return None
    sizes = bytes_per_parameter(spec)
    divided = (stage >= 3, stage >= 2, stage >= 1)
    shares = [spec.world_size if cut else 1 for cut in divided]
    parameters, gradients, optimizer = (size * num_params / share for size, share in zip(sizes, shares, strict=True))
    return PaperTerms(parameters, gradients, optimizer, text=" + ".join(map(_term, sizes, shares)))


def _term(size: int, share: int) -> str:
    return f"{size}P" if share == 1 else f"{size}P/{share}"
