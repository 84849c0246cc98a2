"""What each rank of a trial is: one that trains, or one that serves the others; and which share of a step it takes.

A trial's global batch is the same whoever serves: world_size x gradient_accumulation_steps micro-batches a step. Where
a rank is a server, the others share all of them, each micro-batch as large as it was (so that activations compare), in
more steps of accumulation, as the single process that all are held against does with the whole of it.
"""

from __future__ import annotations

from enum import StrEnum

from zerobench.spec.strategy import STRATEGIES
from zerobench.spec.trial import TrialSpec


class Role(StrEnum):
    """What a rank is for."""

    WORKER = "worker"
    """It trains on data."""
    SERVER = "server"
    """It holds weights and optimizer states for the workers, and sees no data."""


def num_servers(trial: TrialSpec) -> int:
    """Ranks that serve, the first ones; none in most strategies."""
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    return 0 if info is None else info.num_servers


def num_workers(trial: TrialSpec) -> int:
    """Ranks that train."""
    return trial.world_size - num_servers(trial)


def role_of(trial: TrialSpec, rank: int) -> Role:
    """What rank `rank` is."""
    return Role.SERVER if rank < num_servers(trial) else Role.WORKER


def micro_batches_per_step(trial: TrialSpec, rank: int) -> int:
    """Micro-batches that rank `rank` trains on in one optimizer step.

    Where workers cannot share a step's micro-batches evenly the trial is refused (strategy_rules.py).
    """
    if role_of(trial, rank) is Role.SERVER:
        return 0
    return trial.world_size * trial.gradient_accumulation_steps // num_workers(trial)
