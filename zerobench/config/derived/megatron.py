"""Collectives of Megatron-LM's tensor parallelism in one step (Shoeybi et al., arXiv 1909.08053, section 3).

Each block all-reduces b s h elements twice in forward and twice in backward (figure 4, the operators f and g), and the
head once in backward. The paper's loss over cut logits moves b s elements where gathered logits would be b s V.

Two things are torch's and not the paper's. The embedding is cut by columns, so forward has one all-gather of b s h in
place of an all-reduce (rank/strategies/tensor.py says why). The loss reduces three values a token in fp32: maximum,
sum of exponentials, the target's log-probability (torch/distributed/tensor/parallel/loss.py).
"""

from __future__ import annotations

from typing import NamedTuple

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase
from zerobench.config.derived.batch import micro_batches_of_share
from zerobench.config.derived.host_memory import element_bytes
from zerobench.config.derived.tensor_parallel import tensor_parallel_refusal
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.recomputation import recomputed_blocks
from zerobench.config.trial.trial import TrialSpec

_LOSS_REDUCTIONS = 3


class Collectives(NamedTuple):
    """Collectives of one kind in one phase of a step."""

    phase: Phase
    kind: str
    """As in zerobench.records.records.CollectiveTraffic."""
    calls: int
    elements: int
    """Of their whole messages together, in the trial's precision."""


def tensor_moves(trial: TrialSpec) -> tuple[Collectives, ...]:
    """Return the collectives of one step.

    A block that is recomputed reduces again what its attention gives; recomputation stops before the MLP's, which
    nothing needs.
    Raises UserError: a model that cannot be cut, or whose config does not give its dimensions.
    """
    if (why := tensor_parallel_refusal(trial, trial.world_size)) is not None:
        raise UserError(f"strategy: tensor: {why}")
    size = dimensions(trial.model)
    if not (size.num_layers and size.hidden_size):
        raise UserError(f"model: {trial.model.name!r} has no hidden_size and num_hidden_layers in its config")
    tokens, micro_batches = trial.sequence_length * trial.micro_batch_size, micro_batches_of_share(trial)
    forward = 2 * size.num_layers
    backward = forward + 1 + recomputed_blocks(trial.activation_checkpointing, size.num_layers)
    hidden, loss = tokens * size.hidden_size, _LOSS_REDUCTIONS * tokens * 4 // element_bytes(trial)
    moves = (
        (Phase.FORWARD, "all_gather", 1, hidden),
        (Phase.FORWARD, "all_reduce", forward + _LOSS_REDUCTIONS, forward * hidden + loss),
        (Phase.BACKWARD, "all_reduce", backward, backward * hidden),
    )
    return tuple(
        Collectives(phase, kind, micro_batches * calls, micro_batches * elements)
        for phase, kind, calls, elements in moves
    )
