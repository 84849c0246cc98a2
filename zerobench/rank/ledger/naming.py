"""What each storage is for, by positive evidence only; whoever has none stays without a name.

Three kinds of evidence, strongest first: identity (the engine holds this very tensor as its gradient bucket), use
(autograd saved it for the backward pass), place of birth (sites.py). A name that promises a short life, such as
temporary or activation, is taken away from a storage that outlives it, and never given back: what the model kept of an
earlier step is no activation of this one. But for what it returned, where it is gone when the next forward pass is
over: the loop's own variable held it so long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from zerobench.common.vocabulary import Category, Phase, Place
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.holders import ModulePath, ModulePaths, holders_by_birth
from zerobench.rank.ledger.sites import Origin, Site
from zerobench.rank.ledger.storages import Storage, StorageCounter, tensors_in
from zerobench.records.records import Holder

_FSDP = "torch/distributed/fsdp/"
_SHORT_LIVED = {Category.TEMPORARIES, Category.ACTIVATIONS, Category.LOGITS_AND_LOSS, Category.INPUTS}
_KEPT = {Category.PARAMETERS, Category.MODEL_BUFFERS}
"""Whoever has these has them for good, whatever autograd saves of them."""
_LAST_PHASES = (Phase.INIT, Phase.STEP)
"""Nothing of a short life is left at their end: start-up is over, or the step."""


class Names:
    """Evidence gathered while storages live, and the verdict on each."""

    def __init__(self, counter: StorageCounter) -> None:
        self._counter = counter
        self._identity: dict[Storage, tuple[Category, Place | None]] = {}
        self._held_by: dict[Storage, Holder] = {}
        self._walked: dict[Storage, Holder] = {}
        self._saved: set[Storage] = set()
        self._savers: dict[Storage, ModulePath] = {}
        self.paths = ModulePaths()
        """Names of the modules that run."""
        self._left_over: set[Storage] = set()
        self._returned: set[Storage] = set()
        self._returned_before: set[Storage] = set()
        self._loss_nodes: set[int] = set()

    def identify(self, named: Iterable[NamedTensor]) -> None:
        """Take down what the engine says its tensors are; tensors not counted yet are counted now."""
        for item in named:
            self._counter.see(item.tensor)
            storage = self._counter.find(item.tensor)
            if storage is not None and not _lies_in_bucket(item, storage):
                self._identity[storage] = (item.category, item.place)
                if item.holder is not None:
                    self._held_by[storage] = item.holder

    def walked(self, named: Iterable[NamedTensor]) -> None:
        """Take down all that the engine has now; what it had before and lives on has another holder."""
        items = list(named)
        self.identify(items)
        self._walked = {storage: holder for storage, holder in self._walked.items() if not storage.alive}
        for item in items:
            storage = self._counter.find(item.tensor)
            if storage is not None:
                self._walked[storage] = item.holder or Holder.ENGINE

    def saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that autograd keeps for the backward pass (a hook of saved_tensors_hooks); return what to keep.

        A leaf is kept itself, since its Python object may carry attributes that the backward pass reads. Anything else
        is kept without its history: the result of an operation would own the node that keeps it, a cycle through C++
        that nobody collects, so that a graph without a backward pass would never be freed.
        """
        storage = self._counter.find(tensor)
        if storage is not None:
            self._saved.add(storage)
            # Of a parameter autograd keeps the object, whose memory the engine may exchange; of a view the memory.
            if storage not in self._savers and not isinstance(tensor, torch.nn.Parameter):
                self._savers[storage] = self.paths.running()
        return tensor if tensor.grad_fn is None else tensor.detach()

    def returned(self, output: Any) -> None:
        """Note what the model returned: a loop's variable may hold it until the next step's output is there."""
        storages = (self._counter.find(tensor) for tensor in tensors_in(output))
        self._returned |= {storage for storage in storages if storage is not None}

    def mark_loss_graph(self, loss: torch.Tensor, logits_node: int | None) -> None:
        """Note the autograd nodes between the logits and the loss, to know their gradients when they come.

        `logits_node` is the sequence number of the node that made the logits; None if there are none.
        """
        if logits_node is not None:  # earlier micro-batches keep theirs: their backward passes may be yet to come
            self._loss_nodes |= set(_nodes_after(logits_node, loss.grad_fn))

    def end_of(self, phase: Phase) -> None:
        """At the end of a step, and of start-up, forget the dead, and note who lives on under a name of a short life.

        Inputs that were identified are the data loader's, which may hold them for as long as it likes.
        """
        if phase not in _LAST_PHASES:
            return
        self._identity = {
            s: known for s, known in self._identity.items() if s.alive and known[0] is not Category.LOGITS_AND_LOSS
        }
        self._left_over = {s for s in self._counter.live.values() if self._by_birth(s, s.birth) in _SHORT_LIVED}
        self._saved = {s for s in self._saved if s.alive}
        self._held_by = {s: holder for s, holder in self._held_by.items() if s.alive}
        self._walked = {s: holder for s, holder in self._walked.items() if s.alive}
        self._savers = {s: module for s, module in self._savers.items() if s.alive}
        self._returned_before, self._returned = {s for s in self._returned if s.alive}, set()
        self._loss_nodes = set()

    def verdict(self, storage: Storage, phase: Phase, *, is_within: bool = False) -> tuple[Place, Category | None]:
        """Place and category of a storage as known at the end of `phase`; None is no evidence.

        `is_within`: the storage was born in `phase`, which is not over yet, so that it has outlived nothing.
        """
        known = self._identity.get(storage)
        place = Place.HOST if storage.device == "cpu" else Place.DEVICE
        if known is not None:
            return known[1] or place, known[0]
        if phase is Phase.FORWARD and not storage.alive and storage in self._returned_before:
            return place, Category.LOGITS_AND_LOSS
        category = None if storage in self._left_over else self._by_birth(storage, storage.birth)
        if storage.alive and not is_within and _outlived(category, phase):
            category = None
        return place, category

    def holders(self, storage: Storage, category: Category) -> list[Holder]:
        """All that had to let go of a storage of `category` before it could be freed; empty without evidence."""
        known = self._walked.get(storage) or self._held_by.get(storage)
        if known is not None and category in _KEPT:
            return [known]
        holders = set(holders_by_birth(storage.birth, category)) if known is None else {known}
        if storage in self._savers and not storage.birth.name.startswith(_FSDP):  # which takes the memory all the same
            holders = {Holder.AUTOGRAD} if known is None else {known, Holder.AUTOGRAD}
        if storage in self._returned or storage in self._returned_before:
            holders.add(Holder.LOOP)
        return sorted(holders)

    def saver(self, storage: Storage) -> ModulePath:
        """The module whose forward pass saved the storage for backward, else the one that allocated it."""
        return self._savers.get(storage) or ModulePath(storage.birth.module)

    def holder_words(self, storage: Storage, category: Category) -> str | None:
        """`autograd: layers.*.mlp (LlamaMLP)`, `engine`; None without evidence."""
        holders = self.holders(storage, category)
        saver = self._savers.get(storage)
        names = " and ".join(holders)
        if Holder.AUTOGRAD not in holders or saver is None or saver.module is None:
            return names or None
        return f"{names}: {saver.module if saver.path is None else f'{saver.path} ({saver.module})'}"

    def is_placed(self, storage: Storage) -> bool:
        """Whether there is evidence, beyond its device, of the memory that this storage belongs to."""
        known = self._identity.get(storage)
        return bool(storage.birth.on_host) if known is None else known[1] is not None

    def _by_birth(self, storage: Storage, site: Site) -> Category | None:
        proves = site.proves
        if proves is Origin.LOSS or (proves is Origin.AUTOGRAD and site.node in self._loss_nodes):
            return Category.LOGITS_AND_LOSS
        if proves is Origin.FORWARD:
            kept = storage.alive or storage in self._saved
            return Category.ACTIVATIONS if kept else Category.TEMPORARIES
        if proves in (Origin.AUTOGRAD, Origin.BUILD):
            return Category.TEMPORARIES
        return proves if isinstance(proves, Category) else None


def _lies_in_bucket(item: NamedTensor, storage: Storage) -> bool:
    """Whether a gradient is a view into a reduce bucket, as stage 2 makes it: the storage is the bucket's.

    FSDP2 is another matter: what its reduction gives is the gradient from then on.
    """
    is_reduced = storage.birth.proves is Category.REDUCE_BUFFERS and not storage.birth.name.startswith(_FSDP)
    return item.category is Category.GRADIENTS and is_reduced


def _outlived(category: Category | None, phase: Phase) -> bool:
    """Whether a storage that lives at the end of `phase` has outlived the name it was born with."""
    return category is Category.TEMPORARIES or (category in _SHORT_LIVED and phase in _LAST_PHASES)


def _nodes_after(first: int, node: Any) -> Iterable[int]:
    """Sequence numbers of the autograd nodes from `node` down to those made before the node with number `first`.

    Leaves all have the same number, which is the largest of all, and make nothing.
    """
    stack, seen = [node], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen or node._sequence_nr() <= first or not node.next_functions:
            continue
        seen.add(node)
        yield node._sequence_nr()
        stack.extend(parent for parent, _ in node.next_functions)
