"""Learning rate: linear warm-up, then cosine decay to a fraction of the peak (as in the GPT-3 paper, appendix B).

Both are counted in tokens there (375 million of warm-up, 260 billion of decay), independent of the growth of the batch.
So here: a position is the number of tokens seen divided by those of a full batch. With a fixed batch that is the number
of the step.
"""

import math

from zerobench.config.derived.step_plan import PlannedStep
from zerobench.config.trial.trial import HyperparameterSpec, TrialSpec


def learning_rate(position: float, h: HyperparameterSpec, after: float | None = None) -> float:
    """Learning rate of the optimizer step from `position` to `after`, by default one later.

    Both in steps of the full batch, starting at 0.
    """
    if position < h.warmup_steps:
        done = position + 1 if after is None else after
        return h.learning_rate * min(1.0, done / h.warmup_steps)
    span = max(1, h.decay_steps - h.warmup_steps)
    progress = min(1.0, (position - h.warmup_steps) / span)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return h.learning_rate * (h.final_fraction + (1 - h.final_fraction) * cosine)


def planned_rate(trial: TrialSpec, step: PlannedStep) -> float:
    """Learning rate of a planned step of `trial`."""
    full = trial.global_batch_tokens
    return learning_rate(step.seen_tokens / full, trial.hyperparameters, (step.seen_tokens + step.tokens) / full)
