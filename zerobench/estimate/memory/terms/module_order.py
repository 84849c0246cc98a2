"""The order in which a decoder's modules run in one micro-batch, forward and backward, as hooks on them see it.

Backward comes to the modules whose output has a gradient, and leaves those whose input has one. Before a recomputed
block's last weights are passed, all of the block runs forward again, up to those weights (torch's non-reentrant
checkpointing stops at the last tensor that is asked for). Modules without parameters are in the order, since an engine
that has hooks on each does something at each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

from zerobench.config.models.tensors import named_weights
from zerobench.config.trial.backward import Weight, uses
from zerobench.config.trial.model import Component
from zerobench.config.trial.recomputation import is_recomputed
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.terms.passes import adapted_weights

_FOLLOWED = re.compile("wpe|embed_(tokens|in)|gate_proj|c_fc|c_proj|dense|dense_h_to_4h|fc1")
"""Modules after which one runs that has none: rotary tables, an activation, a dropout."""
_MODULES = re.compile(r"\.(?!\d)")
"""Between the parts of a name that are modules of their own: a list of blocks is not."""
_NUMBERED = re.compile(r"\.\d+$")


class Visit(NamedTuple):
    """A module as its turn comes."""

    parameters: tuple[int, ...] = ()
    """Numbers of its own ones."""
    leaves: bool = False
    """Whether it is left, in place of entered."""
    is_backward: bool = False
    runs_again: bool = False
    """Whether it is entered in the second forward pass of a block that backward has come to."""
    saves: bool = False
    """Whether backward needs what it was multiplied with, to pass a gradient on."""


class _Leaf(NamedTuple):
    """A module that has no others within."""

    path: tuple[str, ...]
    parameters: tuple[int, ...]
    gets: bool
    """Whether the gradient of its input is computed."""
    gives: bool
    """Whether its output has one."""


class ModuleOrder(NamedTuple):
    """A model's modules, by the numbers of their parameters: as the model holds them, and adapters' from there on."""

    sizes: tuple[int, ...]
    """Elements of each parameter."""
    trained: frozenset[int]
    visits: tuple[Visit, ...]
    coded: frozenset[int] = frozenset()
    """Those that lie as codes."""


def module_order(trial: TrialSpec, frozen: Sequence[int], trained: Sequence[int]) -> ModuleOrder:
    """Return the module order of `trial`'s model; beside adapters its parameters have `frozen` elements, and those of
    adapters `trained`.

    Raises UserError for an architecture without a closed form.
    """
    if trial.adapter is not None:
        numbers = range(len(frozen), len(frozen) + len(trained))
        adapted = adapted_weights(trial)
        coded = frozenset(number for number, held in enumerate(frozen) if held != adapted[number].size)
        return ModuleOrder((*frozen, *trained), frozenset(numbers), _visits(trial, adapted), coded)
    weights = named_weights(trial.model, trial.frozen).all
    own = frozenset(number for number, weight in enumerate(weights) if weight.is_trained)
    return ModuleOrder(tuple(weight.size for weight in weights), own, _visits(trial, weights))


def _visits(trial: TrialSpec, weights: Sequence[Weight]) -> tuple[Visit, ...]:
    leaves = tuple(_leaves(trial, weights))
    passed = [leaf for leaf in leaves if leaf.gives]
    again = {}
    for path, block in groupby(leaves, key=_block):
        if path and is_recomputed(trial.activation_checkpointing, int(path[-1].rpartition(".")[2])):
            modules = list(block)
            last = max((i for i, leaf in enumerate(modules) if leaf.gives and leaf.parameters), default=-1)
            if last >= 0:
                again[modules[last]] = modules[: last + 1]
    return (Visit(), *_forward(leaves), Visit(is_backward=True), *_backward(passed, again))


def _leaves(trial: TrialSpec, weights: Sequence[Weight]) -> Iterator[_Leaf]:
    """In the order of use: tables that are looked up, the others, and a tied head."""
    numbers = {weight.name: number for number, weight in enumerate(weights)}
    depends = False
    for weight in weights:
        if weight.component.is_looked_up:
            is_asked = trial.passes_all and weight.component is Component.TOKEN_EMBEDDINGS
            gives = weight.is_trained or is_asked
            depends, path = depends or gives, _path(weight.name)
            yield _Leaf(path, (numbers[weight.name],), gets=False, gives=gives)
            yield from _without_parameters(path, gives=depends)
    adapted = [] if trial.adapter is None else [weight for weight in weights if weight.is_trained]
    used = uses(weights, depends=trial.passes_all)
    for module, group in groupby(used, key=lambda use: _path(use.weight.name)):
        own = list(group)
        path = ("lm_head",) if own[0].weight.component.is_looked_up else module
        parameters, gets = tuple(numbers[use.weight.name] for use in own), own[0].passes_on
        gives = gets or any(use.weight.is_trained for use in own)
        if own[0].weight in adapted:
            first = len(weights) + 2 * adapted.index(own[0].weight)
            yield _Leaf((*path, "base_layer"), parameters, gets, gives=gets)
            yield _Leaf((*path, "lora_A"), (first,), gets, gives=True)
            yield _Leaf((*path, "lora_B"), (first + 1,), gets=True, gives=True)
        else:
            yield _Leaf(path, parameters, gets, gives)
        yield from _without_parameters(path, gives=gives)


def _path(name: str) -> tuple[str, ...]:
    return tuple(_MODULES.split(name)[:-1])


def _block(leaf: _Leaf) -> tuple[str, ...]:
    """The path of the block that it is in, if any."""
    ends = [i for i, part in enumerate(leaf.path) if _NUMBERED.search(part)]
    return leaf.path[: ends[0] + 1] if ends else ()


def _without_parameters(path: tuple[str, ...], *, gives: bool) -> Iterator[_Leaf]:
    """Modules that run after the module."""
    if _FOLLOWED.fullmatch(path[-1]):
        yield _Leaf((*path[:-1], f"after {path[-1]}"), (), gives, gives)


def _forward(leaves: Iterable[_Leaf], within: tuple[str, ...] = ()) -> Iterator[Visit]:
    """`within`: the path of a module that has been entered."""
    for leaf in leaves:
        yield from _entered(within, leaf.path, Visit())
        yield Visit(leaf.parameters)
        yield Visit(leaf.parameters, leaves=True, saves=leaf.gets)
        within = leaf.path[:-1]


def _backward(leaves: Sequence[_Leaf], again: Mapping[_Leaf, Sequence[_Leaf]]) -> Iterator[Visit]:
    """`again`: what runs forward once more as soon as a module has been entered."""
    within: tuple[str, ...] = ()
    for leaf in reversed(leaves):
        yield from _entered(within, leaf.path, Visit(is_backward=True))
        yield Visit(leaf.parameters, is_backward=True)
        if leaf in again:
            *once_more, _ = _forward(again[leaf], _block(leaf))
            yield from (visit._replace(runs_again=True) for visit in once_more)
        if leaf.gets:
            yield Visit(leaf.parameters, is_backward=True, leaves=True)
        within = leaf.path[:-1]


def _entered(within: tuple[str, ...], path: tuple[str, ...], visit: Visit) -> list[Visit]:
    """`visit` for each module around the one of `path` that is not around or of `within`."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(within, path[:-1], strict=False)))
    return [visit] * (len(path) - 1 - shared)
