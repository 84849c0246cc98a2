"""What each rank of a trial is: one that trains, or one that serves the others."""

from enum import StrEnum

from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import TfStrategy, TrialSpec


class Role(StrEnum):
    """What a rank is for."""

    WORKER = "worker"
    """It trains on data."""
    SERVER = "server"
    """It holds weights and optimizer states for the workers, and sees no data."""


def num_servers(trial: TrialSpec) -> int:
    """Ranks that serve, the first ones; none in most strategies."""
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    if trial.strategy == "tensorflow":
        return 1 if trial.tf_strategy is TfStrategy.PARAMETER_SERVER else 0
    return 0 if info is None else info.num_servers


def num_workers(trial: TrialSpec) -> int:
    """Ranks that train."""
    return trial.world_size - num_servers(trial)


def num_loss_ranks(trial: TrialSpec) -> int:
    """Ranks that have a loss: those that train, of a pipeline the last one alone."""
    info = STRATEGIES.get(trial.strategy)
    return 1 if info is not None and info.divides_layers else num_workers(trial)


def role_of(trial: TrialSpec, rank: int) -> Role:
    """What rank `rank` is."""
    return Role.SERVER if rank < num_servers(trial) else Role.WORKER
