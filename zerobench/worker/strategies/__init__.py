"""Ways to train: one file each, all through the same small door (base.Strategy)."""

from __future__ import annotations

from zerobench.worker.strategies.base import Job, Strategy
from zerobench.worker.strategies.single import Single
from zerobench.worker.strategies.zero import Zero

_STRATEGIES: dict[str, type[Strategy]] = {
    "single": Single,
    "zero0": Zero,
    "zero1": Zero,
    "zero2": Zero,
    "zero3": Zero,
}


def make_strategy(job: Job) -> Strategy:
    """The strategy that the trial names; zerobench.spec.strategy has refused unknown names before."""
    return _STRATEGIES[job.trial.strategy](job)
