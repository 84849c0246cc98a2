"""Accounts of what a pass leaves for backward: activations, and logits and loss.

The formulas say what they are at the instants that can be peaks; in between blocks are freed one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Phase
from zerobench.config.derived.chunks import chunk_rows
from zerobench.config.trial.trial import CrossEntropy, TrialSpec
from zerobench.estimate.memory.terms.activations import Activations, activations, trial_shape
from zerobench.estimate.memory.terms.kept import Shape
from zerobench.estimate.memory.terms.terms import Term, Terms
from zerobench.report.explain.terms import Account


def pass_accounts(spec: TrialSpec, category: Category, phase: Phase) -> Iterator[Account]:
    """What may lie in `category` within a phase; nothing where the model's config lacks the sizes that this takes."""
    try:
        trial_shape(spec)
    except UserError:
        return
    make = _activations if category is Category.ACTIVATIONS else _logits
    yield from make(spec, is_backward=phase is Phase.BACKWARD)


def _activations(spec: TrialSpec, *, is_backward: bool) -> Iterator[Account]:
    """Korthikanti et al. 2022 (arXiv 2205.05198), or the tally of transformers' layers
    (estimate/memory/terms/activations.py).
    """
    kept = activations(spec)
    outside = _activation(kept.outside_layers_bytes, "what lies outside the layers")
    again = _activation(kept.recomputed_bytes, "one layer, computed again")
    for layers in range(len(kept.layers), 0, -1):
        held = list(_held_layers(kept, layers))
        yield _account(*held, outside)
        if is_backward:
            yield _account(*held)
            yield _account(*held, again)
            yield _account(*held, outside, again)


def _held_layers(kept: Activations, layers: int) -> Iterator[Term]:
    """What the first `layers` layers hold: those that are run again their inputs, the others all of it."""
    of = "" if layers == len(kept.layers) else f" of {len(kept.layers)}"
    for number, each, what in kept.held(layers):
        yield _activation(number * each, f"{what}, {each:,} bytes x {number}{of} layers")


def _logits(spec: TrialSpec, *, is_backward: bool) -> Iterator[Account]:
    """ForCausalLMLoss of transformers, loss/loss_utils.py (estimate/memory/terms/activations.py, logits_bytes)."""
    shape = trial_shape(spec)
    entries = shape.tokens * shape.vocab_size
    labels = _logit(8 * shape.tokens, f"labels: 8 bytes x {shape.tokens:,} tokens")
    if spec.cross_entropy.is_chunked:
        yield from _chunk(shape, labels)
        return
    own_type = spec.cross_entropy is CrossEntropy.MODEL_DTYPE and shape.element < 4
    for words, each in _LOGITS_OF_OWN_TYPE[is_backward] if own_type else _LOGITS[is_backward]:
        size = each or shape.element
        text = f"{words}: {size} bytes x {shape.tokens:,} tokens x {shape.vocab_size:,} words"
        yield _account(_logit(size * entries, text), labels)
        yield _account(_logit(size * entries, text))


def _chunk(shape: Shape, labels: Term) -> Iterator[Account]:
    """One chunk of tokens at a time (estimate/memory/terms/activations.py, chunked_logits_bytes)."""
    rows = chunk_rows(shape.tokens, shape.hidden_size, shape.vocab_size)
    words = f"{rows:,} tokens of a chunk x {shape.vocab_size:,} words"
    logits = _logit(4 * rows * shape.vocab_size, f"logits in fp32: 4 bytes x {words}")
    size = shape.element
    in_model_type = _logit(size * rows * shape.vocab_size, f"logits in the model's type: {size} bytes x {words}")
    yield _account(logits, *([in_model_type] if size < 4 else []), labels)
    yield _account(logits, labels)
    yield _account(in_model_type)  # Liger's kernel works in place


def _account(*terms: Term) -> Account:
    return Terms(*terms).terms


_activation = partial(Term, Category.ACTIVATIONS)
_logit = partial(Term, Category.LOGITS_AND_LOSS)

_LOGITS = {
    False: (
        ("fp32 log-probabilities", 4),
        ("logits in the model's type", 0),
        ("logits in fp32 and log-probabilities", 8),
        ("logits, in fp32 too, and log-probabilities", 10),
    ),
    True: (
        ("fp32 log-probabilities and two of their gradients", 12),
        ("log-probabilities and their gradient in fp32", 8),
        ("fp32 log-probabilities", 4),
        ("the gradient of the logits", 0),
        ("the gradient of the logits in 16 bits and in fp32", 6),
    ),
}
"""By whether it is backward: what lies there, and its bytes for each word of each token; 0 is the model's element."""

_LOGITS_OF_OWN_TYPE = {
    False: (("logits and log-probabilities in 16 bits", 4), ("log-probabilities in 16 bits", 2)),
    True: (
        ("log-probabilities and two of their gradients in 16 bits", 6),
        ("log-probabilities and their gradient in 16 bits", 4),
        ("log-probabilities, or the gradient of the logits, in 16 bits", 2),
    ),
}
"""The same where the loss is taken in the model's type, of 16 bits."""
