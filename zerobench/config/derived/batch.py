"""Shares of the global batch, and micro-batches of each rank.

The global batch is micro_batch_size x gradient_accumulation_steps x ranks under every strategy, so that losses, tokens
and FLOPs of one step are the same work, and micro-batches have the trial's size, so that activations compare. Under
data parallelism each rank has its own share. If ranks divide the model instead, all of them train the same samples:
each processes all micro-batches of the step with its part of the model. If one rank is a server, the others share all
of them, in more steps of accumulation.
"""

from zerobench.config.derived.roles import Role, num_servers, num_workers, role_of
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import TfStrategy, TrialSpec

AUTOTP_SIZE = "tensor_parallel.autotp_size"
"""DeepSpeed's key for the number of ranks that divide one copy of the model (AutoTP)."""


def autotp_size(trial: TrialSpec) -> int:
    """Ranks that divide one copy of the model by AutoTP."""
    return int(trial.ds_config.get(AUTOTP_SIZE) or 1)


def model_parallel_size(trial: TrialSpec) -> int:
    """Ranks that divide one copy of the model: all, as many as AutoTP's key says, or one."""
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    if info is None or info.divides_batch:
        return autotp_size(trial)
    return trial.world_size


def processes_of(trial: TrialSpec) -> int:
    """Processes of a measured trial: its ranks, or one if a single process has all replicas."""
    holds_all = trial.strategy == "tensorflow" and trial.tf_strategy in {TfStrategy.MIRRORED, TfStrategy.TPU}
    return 1 if holds_all else trial.world_size


def data_parallel_size(trial: TrialSpec) -> int:
    """Shares of the global batch: training ranks divided by the ranks of one model copy."""
    return max(1, num_workers(trial) // model_parallel_size(trial))


def share_of(trial: TrialSpec, rank: int) -> int:
    """Index of the share that `rank`, a worker, trains; ranks that divide one copy of the model are neighbours."""
    return (rank - num_servers(trial)) * data_parallel_size(trial) // num_workers(trial)


def micro_batches_of_share(trial: TrialSpec) -> int:
    """Micro-batches of one share in an optimizer step.

    A trial whose workers cannot share them evenly is refused (strategy_rules.py).
    """
    return trial.gradient_accumulation_steps * trial.world_size // data_parallel_size(trial)


def micro_batches_per_step(trial: TrialSpec, rank: int, step_tokens: int | None = None) -> int:
    """Micro-batches that rank `rank` trains on in an optimizer step; 0 on a server.

    `step_tokens`: tokens of the step over all ranks, if they differ from the full batch (step_plan.py).
    """
    if role_of(trial, rank) is Role.SERVER:
        return 0
    if step_tokens is None:
        return micro_batches_of_share(trial)
    return step_tokens // (trial.micro_batch_size * trial.sequence_length * data_parallel_size(trial))


def micro_batches_read(trial: TrialSpec, rank: int, step_tokens: int | None = None) -> int:
    """Micro-batches that rank `rank` reads for an optimizer step: those it trains on, or none if rank 0 drives it."""
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    driven = info is not None and info.is_driven and rank > 0
    return 0 if driven else micro_batches_per_step(trial, rank, step_tokens)


def limit_micro_batches(trial: TrialSpec) -> TrialSpec:
    """Limit the micro-batches of `trial` to those that its prediction runs."""
    most = trial.prediction.micro_batches
    if most is None or trial.gradient_accumulation_steps <= most:
        return trial
    return trial.model_copy(update={"gradient_accumulation_steps": most})
