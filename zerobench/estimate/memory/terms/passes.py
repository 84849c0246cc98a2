"""FLOPs of the products that a step's passes run, as torch's flop counter sees them, in closed form.

Every matrix is multiplied once forward and twice backward, 2 FLOPs a weight and token. Attention has two products of
each query with s positions forward; backward has four, and fused kernels compute the scores a fifth time (Dao et al.,
arXiv 2205.14135, algorithm 4). The causal mask is not taken off, as the counter does not.

A checkpointed block runs forward again. torch's non-reentrant checkpointing stops at the last tensor that backward
needs, which is what the block's last matrix is multiplied with: that product is left out. DeepSpeed's linear layer at
stage 3 keeps its inputs after it has multiplied (runtime/zero/linear.py), so that there it is not, nor where what it
gives is dropped from. Checkpointed by operation (zerobench.config.trial.recomputation.OPERATIONS), every second product
of a block is computed again, and attention only where it is written out in products.

Beside frozen matrices, adapters alone have gradients of their own (zerobench.config.trial.backward), and what is
multiplied with a block's input has none to pass on in the first block. An adapter beside the last matrix is multiplied
with after it, so that the matrix's product is computed again, and its own last one is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.derived.batch import micro_batches_of_share, model_parallel_size
from zerobench.config.derived.pipeline import own_blocks
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.models.architecture import dimensions
from zerobench.config.models.tensors import (
    Matrices,
    Matrix,
    adapted,
    adapter_tensors,
    blocks_are_linear,
    matrices,
    named_weights,
)
from zerobench.config.trial.adapter import lora_of
from zerobench.config.trial.backward import BackwardPass, Weight, backward_pass, uses
from zerobench.config.trial.recomputation import OPERATIONS, attention_again, recomputed_blocks
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.terms.activations import drops_hidden, keeps_scores
from zerobench.records.records import CountedFlops

_FORWARD_PRODUCTS = 2
_BACKWARD_PRODUCTS, _FUSED_BACKWARD_PRODUCTS = 4, 5


def pass_flops(trial: TrialSpec, *, replaces_linear: bool) -> list[CountedFlops]:
    """FLOPs of one rank's forward and backward passes over all micro-batches of a step, the same in each step.

    `replaces_linear`: whether DeepSpeed's linear layer takes the place of torch's (config/deepspeed/case.py).
    Raises UserError for an architecture without a closed form.
    """
    products, tokens = _own_matrices(trial), trial.micro_batch_size * trial.sequence_length
    adapters = () if trial.adapter is None else adapter_tensors(trial.model, lora_of(trial.adapter))
    weights = products.num_blocks * sum(products.block) + products.outside + sum(adapters)
    score = _score_flops(trial, tokens) * products.num_blocks
    written_out = keeps_scores(trial)
    backward_products = _BACKWARD_PRODUCTS if written_out else _FUSED_BACKWARD_PRODUCTS
    forward = 2 * tokens * weights + _FORWARD_PRODUCTS * score
    frozen = frozen_backward(trial)
    weight_gradients = 2 * weights if frozen is None else _own(trial, frozen)
    attended = score if frozen is None or trial.passes_all else round(score * _attended(trial, frozen))
    backward = 2 * tokens * weight_gradients + backward_products * attended
    asked = trial.activation_checkpointing, own_blocks(trial)
    again = recomputed_blocks(*asked)
    if trial.cross_entropy.is_chunked:
        own, passed = _head_gradients(trial)
        forward += 2 * tokens * products.outside * (1 + own)
        backward -= 2 * tokens * products.outside * (own + passed)
    backward += 2 * tokens * again * _recomputed(trial, products, replaces_linear=replaces_linear)
    backward += 2 * tokens * again * sum(adapters) // products.num_blocks
    scored_again = 0 if not written_out and not attention_again(*asked) else again
    backward += _FORWARD_PRODUCTS * score * scored_again // products.num_blocks
    times = micro_batches_of_share(trial)
    parts = 1 if strategy_info(trial.strategy).divides_layers else model_parallel_size(trial)
    return [
        CountedFlops(step=step, phase=phase, flops=times * flops // parts)
        for step in StepKind
        for phase, flops in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward))
    ]


def _own_matrices(trial: TrialSpec) -> Matrices:
    """Return those of the rank's stage where ranks are those of a pipeline, whose last one has the head; else of the
    model.
    """
    of_model, blocks = matrices(trial.model), own_blocks(trial)
    has_head = blocks.stop == of_model.num_blocks
    return of_model._replace(num_blocks=len(blocks), outside=of_model.outside if has_head else 0)


def frozen_backward(trial: TrialSpec) -> BackwardPass | None:
    """Return the parts of a backward pass beside frozen weights that are computed, the weights that tokens are
    multiplied with among them; None where all are trained.
    """
    if trial.trains_all:
        return None
    if trial.adapter is None:
        return backward_pass(named_weights(trial.model, trial.frozen).all)
    of_model, trained = matrices(trial.model), adapter_tensors(trial.model, lora_of(trial.adapter))
    whole = of_model.num_blocks * sum(of_model.block) + of_model.outside + sum(trained)
    passes = backward_pass(adapted_weights(trial))
    shares = (1.0, 1.0) if passes is None else (passes.attention_share, passes.attending_share)
    return BackwardPass(sum(trained), whole - _before_adapters(trial), *shares)


def adapted_weights(trial: TrialSpec) -> list[Weight]:
    """The model's own weights, those trained beside which there is an adapter."""
    names = {matrix.name for matrix in adapted(trial.model, lora_of(str(trial.adapter)))}
    return [
        weight._replace(is_trained=isinstance(weight.size, Matrix) and weight.size.name in names)
        for weight in named_weights(trial.model).all
    ]


def _before_adapters(trial: TrialSpec) -> int:
    """Weights through which no gradient is passed on: those of the first block before its first adapter."""
    rank = lora_of(str(trial.adapter)).rank
    return sum(
        use.weight.size + rank * use.weight.size.inputs * use.weight.is_trained
        for use in uses(adapted_weights(trial))
        if isinstance(use.weight.size, Matrix) and not use.passes_on
    )


def _own(trial: TrialSpec, frozen: BackwardPass) -> int:
    """Weights that backward multiplies with, once for each gradient: matrices, and an embedding that is the head."""
    if trial.adapter is not None:
        return frozen.trained + frozen.passed + (_before_adapters(trial) if trial.passes_all else 0)
    return sum(
        use.weight.size * (use.weight.is_trained + use.passes_on)
        for use in uses(named_weights(trial.model, trial.frozen).all, depends=trial.passes_all)
        if isinstance(use.weight.size, Matrix) or use.weight.component.is_looked_up
    )


def _head_gradients(trial: TrialSpec) -> tuple[bool, bool]:
    """Return whether the gradient of the head's matrix is computed, and whether that of its input is asked for."""
    if trial.trains_all or trial.adapter is not None:
        return trial.trains_all, True
    *_, head = uses(named_weights(trial.model, trial.frozen).all, depends=trial.passes_all)
    return head.weight.is_trained, head.passes_on


def _attended(trial: TrialSpec, frozen: BackwardPass) -> float:
    """The share of attention's backward products that is computed."""
    return frozen.attention_share if keeps_scores(trial) else frozen.attending_share


def _score_flops(trial: TrialSpec, tokens: int) -> int:
    """One product of all queries with all positions in a block."""
    size = dimensions(trial.model)
    return 2 * tokens * trial.sequence_length * (size.num_heads or 0) * (size.head_dim or 0)


def _recomputed(trial: TrialSpec, products: Matrices, *, replaces_linear: bool) -> int:
    """Weights that the second forward pass of a block multiplies with."""
    again = sum(products.block) - sum(kept_products(trial, replaces_linear=replaces_linear))
    if _runs_late(trial, replaces_linear=replaces_linear) or not _is_last_adapted(trial, products.block):
        return again
    return again - lora_of(str(trial.adapter)).rank * products.block[-1].outputs


def _runs_late(trial: TrialSpec, *, replaces_linear: bool) -> bool:
    """Return whether a block's last matrix keeps its inputs after it has multiplied, or dropout keeps something after
    it.
    """
    return (replaces_linear and blocks_are_linear(trial.model)) or drops_hidden(trial)


def kept_products(trial: TrialSpec, *, replaces_linear: bool) -> list[Matrix]:
    """Matrices of a checkpointed block that are multiplied with once: what backward needs of them is there."""
    block = matrices(trial.model).block
    runs_late = _runs_late(trial, replaces_linear=replaces_linear) or _is_last_adapted(trial, block)
    return [
        matrix
        for index, matrix in enumerate(block)
        if (index == len(block) - 1 and not runs_late)
        or (index % 2 == 0 and trial.activation_checkpointing == OPERATIONS)
    ]


def _is_last_adapted(trial: TrialSpec, block: Sequence[Matrix]) -> bool:
    names = {matrix.name for matrix in adapted(trial.model, lora_of(trial.adapter))} if trial.adapter else set()
    return block[-1].name in names
