"""FLOPs of the products that a step's passes run, as torch's flop counter sees them, in closed form.

Every matrix is multiplied once forward and twice backward, 2 FLOPs a weight and token. Attention has two products of
each query with s positions forward; backward has four, and fused kernels compute the scores a fifth time (Dao et al.,
arXiv 2205.14135, algorithm 4). The causal mask is not taken off, as the counter does not.

A checkpointed block runs forward again. torch's non-reentrant checkpointing stops at the last tensor that backward
needs, which is what the block's last matrix is multiplied with: that product is left out. DeepSpeed's linear layer at
stage 3 keeps its inputs after it has multiplied (runtime/zero/linear.py), so that there it is not. Checkpointed by
operation (zerobench.spec.recomputation.OPERATIONS), every second product of a block is computed again, and attention
only where it is written out in products.
"""

from __future__ import annotations

from zerobench.formulas.tensors import Matrices, blocks_are_linear, matrices
from zerobench.records import CountedFlops, Phase, StepKind
from zerobench.spec.architecture import dimensions
from zerobench.spec.batch import micro_batches_of_share, model_parallel_size
from zerobench.spec.recomputation import OPERATIONS, attention_again, recomputed_blocks
from zerobench.spec.trial import Attention, TrialSpec

_FORWARD_PRODUCTS = 2
_BACKWARD_PRODUCTS = {Attention.EAGER: 4}
_FUSED_BACKWARD_PRODUCTS = 5


def pass_flops(trial: TrialSpec, *, replaces_linear: bool) -> list[CountedFlops]:
    """FLOPs of one rank's forward and backward passes over all micro-batches of a step, the same in each step.

    `replaces_linear`: whether DeepSpeed's linear layer takes the place of torch's (ds_config/case.py).
    Raises UserError for an architecture without a closed form.
    """
    found, tokens = matrices(trial.model), trial.micro_batch_size * trial.sequence_length
    weights = found.num_blocks * sum(found.block) + found.outside
    score = _score_flops(trial, tokens)
    backward_products = _BACKWARD_PRODUCTS.get(trial.attention, _FUSED_BACKWARD_PRODUCTS)
    forward = 2 * tokens * weights + _FORWARD_PRODUCTS * score
    backward = 4 * tokens * weights + backward_products * score
    asked = trial.activation_checkpointing, found.num_blocks
    again = recomputed_blocks(*asked)
    backward += 2 * tokens * again * _recomputed(trial, found, replaces_linear=replaces_linear)
    scored_again = again if trial.attention is Attention.EAGER else attention_again(*asked)
    backward += _FORWARD_PRODUCTS * score * scored_again // found.num_blocks
    times, parts = micro_batches_of_share(trial), model_parallel_size(trial)
    return [
        CountedFlops(step=step, phase=phase, flops=times * flops // parts)
        for step in StepKind
        for phase, flops in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward))
    ]


def _score_flops(trial: TrialSpec, tokens: int) -> int:
    """One product of all queries with all positions, in all layers."""
    size = dimensions(trial.model)
    return 2 * tokens * trial.sequence_length * (size.num_layers or 0) * (size.num_heads or 0) * (size.head_dim or 0)


def _recomputed(trial: TrialSpec, found: Matrices, *, replaces_linear: bool) -> int:
    """Weights that the second forward pass of a block multiplies with."""
    keeps_late = replaces_linear and blocks_are_linear(trial.model)
    skipped = [] if keeps_late else [len(found.block) - 1]
    if trial.activation_checkpointing == OPERATIONS:
        skipped += range(0, len(found.block), 2)
    return sum(size for index, size in enumerate(found.block) if index not in skipped)
