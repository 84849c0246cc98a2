"""Who trains which samples: into how many shares the global batch is cut, and how many micro-batches a rank sees.

The global batch is micro_batch_size x gradient_accumulation_steps x ranks under every strategy, so that losses, tokens
and FLOPs of one step are the same work, and micro-batches are as large as the trial says, so that activations compare.
Under data parallelism each rank has a share of its own. Where ranks divide the model instead, all of them train the
same samples: each sees all micro-batches of the step and takes part in each of them with its part of the model. Where a
rank is a server, the others share all of them, in more steps of accumulation.
"""

from zerobench.config.derived.roles import Role, num_servers, num_workers, role_of
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.trial import TfStrategy, TrialSpec

AUTOTP_SIZE = "tensor_parallel.autotp_size"
"""DeepSpeed's key for AutoTP: how many ranks divide one copy of the model."""


def autotp_size(trial: TrialSpec) -> int:
    """Ranks that divide one copy of the model by AutoTP."""
    return int(trial.ds_config.get(AUTOTP_SIZE) or 1)


def model_parallel_size(trial: TrialSpec) -> int:
    """Ranks that divide one copy of the model: all of them, as many as AutoTP is told, or none but one."""
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    if info is None or info.divides_batch:
        return autotp_size(trial)
    return trial.world_size


def processes_of(trial: TrialSpec) -> int:
    """Processes of a measured trial: its ranks, but where one process holds all replicas."""
    holds_all = trial.strategy == "tensorflow" and trial.tf_strategy in {TfStrategy.MIRRORED, TfStrategy.TPU}
    return 1 if holds_all else trial.world_size


def data_parallel_size(trial: TrialSpec) -> int:
    """Shares of the global batch: the ranks that train, divided by how many of them train the same samples."""
    return max(1, num_workers(trial) // model_parallel_size(trial))


def share_of(trial: TrialSpec, rank: int) -> int:
    """The share that `rank`, a worker, trains; ranks that divide one copy of the model are neighbours."""
    return (rank - num_servers(trial)) * data_parallel_size(trial) // num_workers(trial)


def micro_batches_of_share(trial: TrialSpec) -> int:
    """Micro-batches of one share in an optimizer step.

    Where workers cannot share a step's micro-batches evenly the trial is refused (strategy_rules.py).
    """
    return trial.gradient_accumulation_steps * trial.world_size // data_parallel_size(trial)


def micro_batches_per_step(trial: TrialSpec, rank: int, step_tokens: int | None = None) -> int:
    """Micro-batches that rank `rank` trains on in an optimizer step; none on a server.

    `step_tokens`: tokens of the step over all ranks, where they are not those of the full batch (step_plan.py).
    """
    if role_of(trial, rank) is Role.SERVER:
        return 0
    if step_tokens is None:
        return micro_batches_of_share(trial)
    return step_tokens // (trial.micro_batch_size * trial.sequence_length * data_parallel_size(trial))


def micro_batches_read(trial: TrialSpec, rank: int, step_tokens: int | None = None) -> int:
    """Micro-batches that rank `rank` reads for an optimizer step: those it trains on, or none where another drives."""
    info = STRATEGIES.get(trial.strategy)  # a user's own script has another name
    driven = info is not None and info.is_driven and rank > 0
    return 0 if driven else micro_batches_per_step(trial, rank, step_tokens)


def as_played(trial: TrialSpec) -> TrialSpec:
    """`trial` with as many micro-batches as its prediction plays."""
    most = trial.prediction.micro_batches
    if most is None or trial.gradient_accumulation_steps <= most:
        return trial
    return trial.model_copy(update={"gradient_accumulation_steps": most})
