"""Learning rate: linear warm-up, then cosine decay to a fraction of the peak (as in the GPT-3 paper, appendix B)."""

from __future__ import annotations

import math

from zerobench.spec.trial import HyperparameterSpec


def learning_rate(step: int, h: HyperparameterSpec) -> float:
    """The learning rate of optimizer step `step` (from 0)."""
    if step < h.warmup_steps:
        return h.learning_rate * (step + 1) / h.warmup_steps
    span = max(1, h.decay_steps - h.warmup_steps)
    progress = min(1.0, (step - h.warmup_steps) / span)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return h.learning_rate * (h.final_fraction + (1 - h.final_fraction) * cosine)
