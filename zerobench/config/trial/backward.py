"""Products of a backward pass that are computed, by the trained weights: a frozen one needs fewer, or none.

Backward, a weight costs twice its forward pass: once for its own gradient, if it is trained, and once for the gradient
of its input, if something before it is trained. So a frozen weight above a trained one costs one pass (4 N instead of 6
N in all, as under LoRA: Hu et al. 2021, arXiv:2106.09685), and one below the first trained weight none. Of attention's
four products (with respect to queries, keys, scores and values) those are computed whose result is needed.

Weights are used in the order in which the model registers them, except for the norms of a block, which some models
register last, and for queries, keys and values, and gate and up projections, which share an input.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zerobench.config.trial.model import Component

_BESIDE_EACH_OTHER = re.compile(r"(?P<parent>.*)\.(?:(?P<attended>[qkv])_proj|gate_proj|up_proj)(?=\.)")
_BLOCK = re.compile(r".*?\.\d+\.")
_FIRST_NORM = re.compile(r"\.(input_layernorm|ln_?1|ln_attn|self_attn_layer_norm|attention_norm)\.")
_FUSED = re.compile(r"\.(c_attn|W?qkv(_proj)?|query_key_value)\.")
_ATTENTION = re.compile(r"(?P<parent>.*?\.(?:self_)?(?:attn|attention))\.")


class Weight(NamedTuple):
    """A parameter with its name in the model."""

    name: str
    size: int
    """Elements of the whole tensor."""
    is_trained: bool
    component: Component


class Use(NamedTuple):
    """A parameter in the order of use."""

    weight: Weight
    passes_on: bool
    """Whether the gradient of its input is computed."""


@dataclass(frozen=True)
class BackwardPass:
    """Computed share of a whole backward pass."""

    trained: int
    """Elements whose own gradient is computed, without looked-up tables."""
    passed: int
    """Elements through which a gradient is passed on to earlier weights."""
    attention_share: float
    """Computed share of attention's products."""
    attending_share: float = 1.0
    """Share of layers with any of attention's products; fused kernels then compute all of them."""


def backward_pass(weights: Sequence[Weight]) -> BackwardPass | None:
    """Computed part of the backward pass of a decoder with these `weights`; None if all are trained."""
    if all(weight.is_trained for weight in weights):
        return None
    order = _Order(weights)
    used = list(order.uses())
    shares = [flags.share for flags in order.attended.values()]
    return BackwardPass(
        trained=sum(use.weight.size for use in used if use.weight.is_trained),
        passed=sum(use.weight.size for use in used if use.passes_on),
        attention_share=sum(shares) / len(shares) if shares else 1.0,
        attending_share=sum(map(bool, shares)) / len(shares) if shares else 1.0,
    )


def uses(weights: Sequence[Weight], *, depends: bool = False) -> Iterator[Use]:
    """Weights that tokens are multiplied with, in order of use; `depends`: the embedding's output needs a gradient in
    any case.
    """
    return _Order(weights, depends=depends).uses()


class _AttentionInputs:
    """Queries, keys and values of one layer that depend on a trained weight."""

    def __init__(self) -> None:
        self.depends = dict.fromkeys("qkv", False)

    def note(self, letters: Iterable[str], *, depends: bool) -> None:
        for letter in letters:
            self.depends[letter] |= depends

    @property
    def share(self) -> float:
        q, k, v = (self.depends[letter] for letter in "qkv")
        return sum((q, k, q or k, v)) / 4


class _Order:
    """Walk over the weights that tracks whether an earlier one is trained."""

    def __init__(self, weights: Sequence[Weight], *, depends: bool = False) -> None:
        is_tied = all(weight.component is not Component.HEAD for weight in weights)
        tables = [weight for weight in weights if weight.component.is_looked_up]
        heads = [weight for weight in tables if is_tied and weight.component is Component.TOKEN_EMBEDDINGS]
        self._weights = sorted((weight for weight in weights if weight not in tables), key=_Places()) + heads
        self._depends = depends or any(table.is_trained for table in tables)
        self._group: str | None = None
        self._branches: dict[str, bool] = {}
        self.attended: dict[str, _AttentionInputs] = {}

    def uses(self) -> Iterator[Use]:
        for weight in self._weights:
            beside = _BESIDE_EACH_OTHER.match(weight.name)
            self._enter(beside and beside["parent"])
            branch = beside[0] if beside else ""
            before = self._branches.get(branch, self._depends)
            yield Use(weight, before)
            after = before or weight.is_trained
            if beside:
                self._branches[branch] = after
            else:
                self._depends = after
            self._note_attention(weight.name, beside, depends=after)

    def _enter(self, group: str | None) -> None:
        """Leave the branches that share an input if this weight is in none of them."""
        if group != self._group:
            self._depends = self._depends or any(self._branches.values())
            self._group, self._branches = group, {}

    def _note_attention(self, name: str, beside: re.Match[str] | None, *, depends: bool) -> None:
        """Separate queries, keys and values; otherwise the first weights of attention make all three."""
        match = _ATTENTION.match(name)
        if match is None:
            return
        is_first = match["parent"] not in self.attended
        flags = self.attended.setdefault(match["parent"], _AttentionInputs())
        if beside and beside["attended"]:
            flags.note(beside["attended"], depends=depends)
        elif is_first or _FUSED.search(name):
            flags.note("qkv", depends=depends)


class _Places:
    """Sort key by use: blocks in order, in each the first norm, attention, the other norms, and the rest."""

    def __init__(self) -> None:
        self._blocks: dict[str, int] = {}

    def __call__(self, weight: Weight) -> tuple[int, int]:
        block = _BLOCK.match(weight.name)
        place = self._blocks.setdefault(block[0] if block else weight.name, len(self._blocks))
        return place, _place_in_block(weight) if block else 0


def _place_in_block(weight: Weight) -> int:
    if _ATTENTION.match(weight.name):
        return 1
    if weight.component is not Component.NORMS:
        return 3
    return 0 if _FIRST_NORM.search(weight.name) else 2
