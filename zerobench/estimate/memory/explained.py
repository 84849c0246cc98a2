"""Arithmetic of a category at a peak by the closed forms, for records that do not have its parts.

These are records of older versions and of evidence `formula`. Where a record has parts they are the explanation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.config.derived.chunks import chunk_rows
from zerobench.config.derived.known_work import knows_work
from zerobench.config.trial.trial import CrossEntropy, TrialSpec
from zerobench.estimate.memory.deepspeed.stage_3 import gathered_in
from zerobench.estimate.memory.record import formula_setting, input_tokens, trial_instants
from zerobench.estimate.memory.terms.activations import Activations, Logits, activations, trial_shape
from zerobench.estimate.memory.terms.kept import Shape
from zerobench.estimate.memory.terms.terms import Bytes, Term, Terms
from zerobench.estimate.memory.timeline import device_phases, other_phases

CLOSE = 0.02
"""Largest relative distance at which terms count as an explanation."""
_MOST_AT_CLOSE = 6
"""Of more candidates than this the distance shrinks, so that none fits by chance."""
_NO_WORK = (Activations((), (), 0, 0, ""), Logits(0, 0, 0, 0))
"""A pass that leaves nothing: what remains is what the strategy holds."""

Account = tuple[Term, ...]


def explained(
    trial: TrialSpec, category: Category, nbytes: int, step: StepKind, phase: Phase, place: Place, *, on_gpu: bool
) -> Account:
    """Return the terms that come nearest to `nbytes` of `category` on rank `trial.prediction.rank`.

    Empty where no instant that the closed forms name comes within CLOSE, or where there is no closed form.
    """
    try:
        candidates = list(_accounts(trial, category, step, phase, place, on_gpu=on_gpu)) if knows_work(trial) else []
    except UserError:
        return ()
    named = [account for account in dict.fromkeys(candidates) if account and all(term.words for term in account)]
    return _nearest(nbytes, named) or _nearest(nbytes, list(dict.fromkeys(_between(named))))


def _between(named: Sequence[Account]) -> Iterator[Account]:
    """Yield single terms, and other fills of their buckets: instants between those that the closed forms name."""
    for term in (term for account in named for term in account):
        yield (term,)
        yield from ((other,) for other in (term.others() if term.others else ()))


def _nearest(nbytes: int, accounts: Sequence[Account]) -> Account:
    close = nbytes * CLOSE * min(1.0, _MOST_AT_CLOSE / max(len(accounts), 1))
    distance = {account: abs(nbytes - sum(term.nbytes for term in account)) for account in accounts}
    nearest = min(accounts, key=lambda account: distance[account], default=())
    return nearest if nearest and distance[nearest] <= close else ()


def closed_form_params(trial: TrialSpec) -> int | None:
    """Return how many parameters the closed form trains; None where there is none."""
    try:
        return formula_setting(trial).num_params if knows_work(trial) else None
    except UserError:
        return None


def _accounts(
    trial: TrialSpec, category: Category, step: StepKind, phase: Phase, place: Place, *, on_gpu: bool
) -> Iterator[Account]:
    if category in {Category.ACTIVATIONS, Category.LOGITS_AND_LOSS}:
        make = _activations if category is Category.ACTIVATIONS else _logits
        yield from make(trial, is_backward=phase is Phase.BACKWARD)
        return
    setting = replace(formula_setting(trial), on_gpu=on_gpu)
    at = trial_instants(trial, setting, step)[place]
    phases = device_phases(at, *_NO_WORK, input_tokens(trial)) if place is Place.DEVICE else other_phases(at)
    yield from (_terms_of(instant, category) for instant in phases[phase])
    if (category, step, place) == (Category.GATHERED_PARAMETERS, StepKind.STEADY, Place.DEVICE):
        yield from (_terms_of(terms, category) for terms in gathered_in(setting, phase))


def _terms_of(instant: Bytes, category: Category) -> Account:
    return tuple(term for term in instant.terms if term.category is category) if isinstance(instant, Terms) else ()


def _activations(trial: TrialSpec, *, is_backward: bool) -> Iterator[Account]:
    """Korthikanti et al. 2022 (arXiv 2205.05198), or the tally of transformers' layers (terms/activations.py)."""
    kept = activations(trial)
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
    """The first `layers` layers: inputs of those that are recomputed, all of the others."""
    of = "" if layers == len(kept.layers) else f" of {len(kept.layers)}"
    for number, each, what in kept.held(layers):
        yield _activation(number * each, f"{what}, {each:,} bytes x {number}{of} layers")


def _logits(trial: TrialSpec, *, is_backward: bool) -> Iterator[Account]:
    """ForCausalLMLoss of transformers, loss/loss_utils.py (terms/activations.py, logits_bytes)."""
    shape = trial_shape(trial)
    entries = shape.tokens * shape.vocab_size
    labels = _logit(8 * shape.tokens, f"labels: 8 bytes x {shape.tokens:,} tokens")
    if trial.cross_entropy.is_chunked:
        yield from _chunk(shape, labels)
        return
    own_type = trial.cross_entropy is CrossEntropy.MODEL_DTYPE and shape.element < 4
    for words, each in _LOGITS_OF_OWN_TYPE[is_backward] if own_type else _LOGITS[is_backward]:
        size = each or shape.element
        text = f"{words}: {size} bytes x {shape.tokens:,} tokens x {shape.vocab_size:,} words"
        yield _account(_logit(size * entries, text), labels)
        yield _account(_logit(size * entries, text))


def _chunk(shape: Shape, labels: Term) -> Iterator[Account]:
    """One chunk of tokens at a time (terms/activations.py, chunked_logits_bytes)."""
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
