"""Names each storage by its purpose, from positive evidence only; a storage without evidence stays unnamed.

Three kinds of evidence, strongest first: identity (the engine holds this very tensor as its gradient bucket), use
(autograd saved it for the backward pass), allocation site (sites.py). A short-lived name, such as temporary or
activation, is taken away for good from a storage that outlives it: memory kept from an earlier step is no activation of
this one. The exception is the model's output, if it is gone by the end of the next forward pass: until then the loop's
own variable held it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zerobench.common.vocabulary import Category, Phase, Place
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.holders import ModulePath, ModulePaths, holders_by_birth
from zerobench.rank.ledger.sites import Origin, Site
from zerobench.rank.ledger.storages import Storage, StorageCounter, tensors_in
from zerobench.records.records import Holder

_KEEPER = "torch/utils/checkpoint.py"


@contextmanager
def watch_random_states(tell: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """While open, call `tell` with each state that activation checkpointing takes of the CPU's generator (5 kB a
    block).

    torch's generator makes the tensor in C++, below the dispatch mode (torch/csrc/Generator.cpp, getState), so that
    only the allocator sees it. It is recognised by its caller, torch/utils/checkpoint.py, in all threads.
    """
    get_rng_state = torch.get_rng_state
    listeners = [tell]

    def get_and_tell() -> torch.Tensor:
        state = get_rng_state()
        if sys._getframe(1).f_code.co_filename.endswith(_KEEPER):
            for listener in listeners:
                listener(state)
        return state

    torch.get_rng_state = get_and_tell
    try:
        yield
    finally:
        torch.get_rng_state = get_rng_state
        listeners.clear()  # a module imported in the meantime may keep our function


_FSDP = "torch/distributed/fsdp/"
_SHORT_LIVED = {Category.TEMPORARIES, Category.ACTIVATIONS, Category.LOGITS_AND_LOSS, Category.INPUTS}
_KEPT = {Category.PARAMETERS, Category.MODEL_BUFFERS}
"""Their holder keeps them for good, whether or not autograd saves them."""
_LAST_PHASES = (Phase.INIT, Phase.STEP)
"""Phases that end start-up or a step, after which nothing short-lived is left."""


class Names:
    """Gathers evidence on storages while they live, and decides on each."""

    def __init__(self, counter: StorageCounter) -> None:
        self._counter = counter
        self._identity: dict[Storage, tuple[Category, Place | None]] = {}
        self._held_by: dict[Storage, Holder] = {}
        self._walked: dict[Storage, Holder] = {}
        self._saved: set[Storage] = set()
        self._savers: dict[Storage, ModulePath] = {}
        self.paths = ModulePaths()
        """Names of the running modules."""
        self._left_over: set[Storage] = set()
        self._returned: set[Storage] = set()
        self._returned_before: set[Storage] = set()
        self._loss_nodes: set[int] = set()

    def identify(self, named: Iterable[NamedTensor]) -> None:
        """Record names that the engine gives its tensors; counts tensors that were not counted yet."""
        for item in named:
            self._counter.see(item.tensor)
            storage = self._counter.find(item.tensor)
            if storage is not None and not _lies_in_bucket(item, storage):
                self._identity[storage] = (item.category, item.place)
                if item.holder is not None:
                    self._held_by[storage] = item.holder

    def walked(self, named: Iterable[NamedTensor]) -> None:
        """Record all tensors of the engine now; a tensor of an earlier walk that lives on has another holder."""
        items = list(named)
        self.identify(items)
        self._walked = {storage: holder for storage, holder in self._walked.items() if not storage.alive}
        for item in items:
            storage = self._counter.find(item.tensor)
            if storage is not None:
                self._walked[storage] = item.holder or Holder.ENGINE

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a tensor that autograd saves for backward (a hook of saved_tensors_hooks); return the one to save.

        A leaf is saved itself, since its Python object may carry attributes that the backward pass reads. Any other
        tensor is detached: the result of an operation would own the node that saves it, a cycle through C++ that is
        never collected, so that a graph without a backward pass would never be freed.
        """
        storage = self._counter.find(tensor)
        if storage is not None:
            self._saved.add(storage)
            # Autograd keeps a parameter as an object, whose memory the engine may replace, and a view as memory.
            if storage not in self._savers and not isinstance(tensor, torch.nn.Parameter):
                self._savers[storage] = self.paths.running()
        return tensor if tensor.grad_fn is None else tensor.detach()

    def returned(self, output: Any) -> None:
        """Record the model's output: a loop's variable may hold it until the next step's output replaces it."""
        storages = (self._counter.find(tensor) for tensor in tensors_in(output))
        self._returned |= {storage for storage in storages if storage is not None}

    def mark_loss_graph(self, loss: torch.Tensor, logits_node: int | None) -> None:
        """Record the autograd nodes between the logits and the loss, to recognise their gradients later.

        `logits_node` is the sequence number of the node that made the logits; None if there are none.
        """
        if logits_node is not None:  # earlier micro-batches keep theirs, for backward passes that are still to come
            self._loss_nodes |= set(_nodes_after(logits_node, loss.grad_fn))

    def end_of(self, phase: Phase) -> None:
        """At the end of start-up or a step, forget dead storages and record the live ones with a short-lived name.

        Identified inputs are exempt: the data loader may hold them as long as it likes.
        """
        if phase not in _LAST_PHASES:
            return
        self._identity = {
            s: known for s, known in self._identity.items() if s.alive and known[0] is not Category.LOGITS_AND_LOSS
        }
        self._left_over = {s for s in self._counter.live.values() if self._birth_category(s, s.birth) in _SHORT_LIVED}
        self._saved = {s for s in self._saved if s.alive}
        self._held_by = {s: holder for s, holder in self._held_by.items() if s.alive}
        self._walked = {s: holder for s, holder in self._walked.items() if s.alive}
        self._savers = {s: module for s, module in self._savers.items() if s.alive}
        self._returned_before, self._returned = {s for s in self._returned if s.alive}, set()
        self._loss_nodes = set()

    def verdict(self, storage: Storage, phase: Phase, *, is_within: bool = False) -> tuple[Place, Category | None]:
        """Place and category of a storage at the end of `phase`; category None without evidence.

        `is_within`: the storage was born in `phase`, which is still running, so it has not outlived its name.
        """
        known = self._identity.get(storage)
        place = Place.HOST if storage.device == "cpu" else Place.DEVICE
        if known is not None:
            return known[1] or place, known[0]
        if phase is Phase.FORWARD and not storage.alive and storage in self._returned_before:
            return place, Category.LOGITS_AND_LOSS
        category = None if storage in self._left_over else self._birth_category(storage, storage.birth)
        if storage.alive and not is_within and _outlived(category, phase):
            category = None
        return place, category

    def holders(self, storage: Storage, category: Category) -> list[Holder]:
        """Holders that have to release a storage of `category` before it can be freed; empty without evidence."""
        holder = self._walked.get(storage) or self._held_by.get(storage)
        if holder is not None and category in _KEPT:
            return [holder]
        holders = set(holders_by_birth(storage.birth, category)) if holder is None else {holder}
        if storage in self._savers and not storage.birth.name.startswith(_FSDP):  # FSDP frees its memory regardless
            holders = {Holder.AUTOGRAD} if holder is None else {holder, Holder.AUTOGRAD}
        if storage in self._returned or storage in self._returned_before:
            holders.add(Holder.LOOP)
        return sorted(holders)

    def saver(self, storage: Storage) -> ModulePath:
        """Module whose forward pass saved the storage for backward, else the one that allocated it."""
        return self._savers.get(storage) or ModulePath(storage.birth.module)

    def holder_words(self, storage: Storage, category: Category) -> str | None:
        """Holders in words, such as `autograd: layers.*.mlp (LlamaMLP)` or `engine`; None without evidence."""
        holders = self.holders(storage, category)
        saver = self._savers.get(storage)
        names = " and ".join(holders)
        if Holder.AUTOGRAD not in holders or saver is None or saver.module is None:
            return names or None
        return f"{names}: {saver.module if saver.path is None else f'{saver.path} ({saver.module})'}"

    def is_placed(self, storage: Storage) -> bool:
        """True if there is evidence of this storage's place beyond its device."""
        known = self._identity.get(storage)
        return bool(storage.birth.on_host) if known is None else known[1] is not None

    def _birth_category(self, storage: Storage, site: Site) -> Category | None:
        proves = site.proves
        if proves is Origin.LOSS or (proves is Origin.AUTOGRAD and site.node in self._loss_nodes):
            return Category.LOGITS_AND_LOSS
        if proves is Origin.FORWARD:
            is_kept = storage.alive or storage in self._saved
            return Category.ACTIVATIONS if is_kept else Category.TEMPORARIES
        if proves in (Origin.AUTOGRAD, Origin.BUILD):
            return Category.TEMPORARIES
        return proves if isinstance(proves, Category) else None


def _lies_in_bucket(item: NamedTensor, storage: Storage) -> bool:
    """True if a gradient is a view into a reduce bucket, as under stage 2: the storage is the bucket's.

    Not so under FSDP2, where the output of the reduction becomes the gradient.
    """
    is_reduced = storage.birth.proves is Category.REDUCE_BUFFERS and not storage.birth.name.startswith(_FSDP)
    return item.category is Category.GRADIENTS and is_reduced


def _outlived(category: Category | None, phase: Phase) -> bool:
    """True if a storage that lives at the end of `phase` has outlived the category of its birth."""
    return category is Category.TEMPORARIES or (category in _SHORT_LIVED and phase in _LAST_PHASES)


def _nodes_after(first: int, node: Any) -> Iterable[int]:
    """Sequence numbers of the autograd nodes from `node` back to those that follow node `first`.

    Leaves are skipped: they all have the same number, the largest of all.
    """
    stack, visited = [node], set()
    while stack:
        node = stack.pop()
        if node is None or node in visited or node._sequence_nr() <= first or not node.next_functions:
            continue
        visited.add(node)
        yield node._sequence_nr()
        stack.extend(parent for parent, _ in node.next_functions)
