"""Roles of a trial's ranks: workers train, servers keep states for them."""

from enum import StrEnum

from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import TfStrategy, TrialSpec


class Role(StrEnum):
    WORKER = "worker"
    """Trains on data."""
    SERVER = "server"
    """Has weights and optimizer states for the workers, and sees no data."""


def num_servers(trial: TrialSpec) -> int:
    """Number of servers, the first ranks; 0 in most strategies."""
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    if trial.strategy == "tensorflow":
        return 1 if trial.tf_strategy is TfStrategy.PARAMETER_SERVER else 0
    return 0 if info is None else info.num_servers


def num_workers(trial: TrialSpec) -> int:
    return trial.world_size - num_servers(trial)


def num_loss_ranks(trial: TrialSpec) -> int:
    """Ranks with a loss: the workers, or the last stage of a pipeline."""
    info = STRATEGIES.get(trial.strategy)
    return 1 if info is not None and info.divides_layers else num_workers(trial)


def role_of(trial: TrialSpec, rank: int) -> Role:
    return Role.SERVER if rank < num_servers(trial) else Role.WORKER
