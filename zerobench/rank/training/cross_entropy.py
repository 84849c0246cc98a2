"""Computes output head and loss for some tokens at a time, so that the logits [tokens, vocabulary] are never whole.

Logits are the largest activation of a model with a large vocabulary: 12 bytes a token and word at their peak in
transformers' own loss (zerobench.estimate.memory.terms.activations). Here they are computed for a chunk of tokens,
turned into loss and gradients at once, and dropped (Hsu et al., "Liger Kernel", arXiv 2410.10989, section 3.2,
FusedLinearCrossEntropy). Only the gradients of the head's weight and input remain for the backward pass. The peak is no
higher than with logits recomputed in backward, with three matrix products instead of four.

`chunked` consists of torch operations, so that it runs in every world and its memory is visible. torch's own
`torch.nn.functional.linear_cross_entropy` is not used: only torch 2.13 has it, its mean of 16-bit inputs is rounded to
16 bits (16.62 for a loss of 16.46), and its internal allocations are invisible to dispatch modes and fake tensors.
`liger` is the paper's Triton kernel, from the package liger-kernel.

`model_dtype` is the choice of many hand-written loops, unlike transformers: logits whole, and never in fp32. It takes
6 bytes a token and word at its peak in 16 bits, and its loss is rounded to 16 bits.

The loss is computed within the head's own call: sharding engines gather a module's parameters only for its call.
"""

from collections.abc import Callable
from typing import Any

import torch

from zerobench.config.derived.chunks import chunk_rows
from zerobench.config.trial.trial import CrossEntropy

IGNORED = -100
"""Label of a token without a next one, as in transformers (loss/loss_utils.py, ForCausalLMLoss)."""

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps hidden states [tokens, hidden size], the head's weight [words, hidden size] and labels [tokens] to the mean
loss."""


def fuse_loss(model: Any, how: CrossEntropy) -> None:
    """Make `model`, a causal language model of transformers, compute head and loss according to `how`.

    Its output then has the loss, but no logits. Without labels nothing changes. Raises TypeError if the head is not a
    plain matrix.
    """
    if how is CrossEntropy.FULL:
        return
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or head.bias is not None:
        raise TypeError(f"cross_entropy {how}: the output head {type(head).__name__} is not a matrix alone")
    if how.is_chunked:
        _FusedHead(model, head, LOSSES[how])
    else:
        model.loss_function = model_dtype_loss
    head.cross_entropy = how.value


def effective_loss(model: Any) -> str:
    """Loss implementation of the model, read back from it."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return str(getattr(head, "cross_entropy", CrossEntropy.FULL.value))


class _FusedHead:
    """Replaces a head's forward pass, using the labels of the enclosing model's call."""

    def __init__(self, model: Any, head: torch.nn.Linear, loss: Loss) -> None:
        self._head, self._loss = head, loss
        self._logits = head.forward
        self._labels: torch.Tensor | None = None
        model.register_forward_pre_hook(self._take_labels, with_kwargs=True)
        head.forward = self._forward  # type: ignore[method-assign, assignment] # a head of no other name for its input
        model.loss_function = lambda logits, *_, **__: logits  # the head already returned the loss

    def _take_labels(self, _model: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        self._labels = kwargs.get("labels")

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        labels, self._labels = self._labels, None
        if labels is None:
            return self._logits(hidden)
        return self._loss(hidden.flatten(0, 1), self._head.weight, next_tokens(labels))


def model_dtype_loss(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    """Mean cross entropy of `logits` [batch, sequence, words], computed and returned in their own type."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), next_tokens(labels), ignore_index=IGNORED)


def next_tokens(tokens: torch.Tensor) -> torch.Tensor:
    """Labels of `tokens` [batch, sequence], flat: the next token, and IGNORED for the last one."""
    return torch.nn.functional.pad(tokens, (0, 1), value=IGNORED)[:, 1:].flatten()


def chunked_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in fp32, chunk by chunk (Loss)."""
    loss: torch.Tensor = _ChunkedLoss.apply(hidden, weight, labels)  # type: ignore[no-untyped-call]
    return loss


def liger_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy with Liger's kernel (Loss)."""
    from liger_kernel.ops.fused_linear_cross_entropy import (  # type: ignore[import-not-found] # an extra, for GPUs
        LigerFusedLinearCrossEntropyFunction,
    )

    out = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, labels)
    loss: torch.Tensor = out[0] if isinstance(out, tuple) else out
    return loss


LOSSES: dict[CrossEntropy, Loss] = {CrossEntropy.CHUNKED: chunked_loss, CrossEntropy.LIGER: liger_loss}


class _ChunkedLoss(torch.autograd.Function):
    """Computes loss and gradients in one pass over the chunks. Gradients are of the sum until backward divides them:
    16-bit gradients of a mean over many tokens would underflow before the loss scale reaches them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
    ) -> torch.Tensor:
        """Sum the losses of the chunks."""
        of_hidden = _hidden_gradient(hidden)
        of_weight = _weight_gradient(weight) if ctx.needs_input_grad[1] else None  # the head may be frozen
        total = hidden.new_zeros((), dtype=torch.float32)
        rows = chunk_rows(hidden.shape[0], hidden.shape[1], weight.shape[0])
        for begin in range(0, hidden.shape[0], rows):
            some = slice(begin, begin + rows)
            total += _one_chunk(hidden[some], weight, labels[some], of_hidden[some], of_weight)
        count = (labels != IGNORED).sum()
        ctx.save_for_backward(of_hidden, of_weight, count)
        return total / count

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Scale the gradients from forward."""
        of_hidden, of_weight, count = ctx.saved_tensors
        factor = gradient / count
        return of_hidden.mul_(factor), None if of_weight is None else of_weight.mul_(factor), None


def _one_chunk(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    of_hidden: torch.Tensor,
    of_weight: torch.Tensor | None,
) -> torch.Tensor:
    """Sum of the chunk's losses; writes gradients into `of_hidden` and adds them to `of_weight`.

    The gradient of a token's logits is the softmax, minus one at its label.
    """
    counts = (labels != IGNORED).unsqueeze(1)
    labels = labels.clamp(min=0).unsqueeze(1)
    logits = torch.mm(hidden, weight.t()).float()
    logits.sub_(logits.amax(1, keepdim=True))
    at_label = logits.gather(1, labels)
    sums = logits.exp_().sum(1, keepdim=True)
    losses = (sums.log() - at_label) * counts
    logits.mul_(counts / sums).scatter_add_(1, labels, -counts.float())
    of_logits = logits.to(hidden.dtype)
    torch.mm(of_logits, weight, out=of_hidden)
    if of_weight is not None:
        # not addmm_, whose FLOPs torch does not count
        torch.addmm(of_weight, of_logits.t(), hidden, out=of_weight)
    return losses.sum()


def _hidden_gradient(hidden: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(hidden)


def _weight_gradient(weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(weight)
