"""One phase of the book of torch's CPU allocator: a place and category for every block.

- A block under a known storage gets that storage's category.
- A block that no tensor was seen to own is working memory of a kernel or collective if one operation both took and
  freed it, or if a gloo thread (which only runs collectives) took it and it was freed within the phase.
- Blocks of Horovod's thread, which only reduces gradients, are its buffers.
- Any other unseen block (tensors of other threads, or owned by C++ alone) stays without a category.

Page-locked memory enters the book through its tensors; the rounding of its allocator is a block of its own, under the
negative serial number of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from zerobench.common.vocabulary import Category, Place
from zerobench.estimate.allocator.allocator_settings import page_locked_rounding
from zerobench.rank.ledger.cpu_book import GLOO, HOROVOD, Change, Pages
from zerobench.rank.ledger.replay import Composition, replay
from zerobench.rank.ledger.storages import Storage

Verdict = tuple[Place, Category | None]


class BookedPhase:
    """The blocks of a phase; `unseen` is the place of blocks that no tensor was seen to own."""

    def __init__(
        self, pages: Pages, storages: Iterable[Storage], verdict: Callable[[Storage], Verdict], unseen: Place
    ) -> None:
        self._nobody: Verdict = (unseen, None)
        self._known: dict[int, Verdict] = {}
        self._storages: dict[int, Storage] = {}
        for storage in storages:
            serial, known = storage.block, verdict(storage)
            # If several storages share a block, one with a category decides.
            if serial and (known[1] is not None or serial not in self._known):
                self._known[serial] = known
                self._storages[serial] = storage
            if serial and storage.is_page_locked:
                self._known[-serial] = (known[0], Category.ALLOCATOR_ROUNDING)
        self._changes = list(_add_rounding(pages.changes, self._known))
        self._standing = list(_add_rounding(pages.standing, self._known))
        for serial in _working_memory(pages.changes) - self._known.keys():
            self._known[serial] = (unseen, Category.KERNEL_WORKSPACE)
        for block in (*pages.standing, *pages.changes):
            if block.operation == HOROVOD and block.nbytes > 0:
                self._known.setdefault(block.serial, (unseen, Category.REDUCE_BUFFERS))

    def composition(self, place: Place) -> Composition[Category | None]:
        """Categories of one place, at the peak of all blocks and at the peak of those that tensors own."""
        changes, standing = (
            [block for block in blocks if self._known.get(block.serial, self._nobody)[0] is place]
            for blocks in (self._changes, self._standing)
        )
        whole = replay(_bytes(standing), _bytes(changes), self._category, self._storages.get)
        tensors = replay(_bytes(self._tensors(standing)), _bytes(self._tensors(changes)), self._category)
        whole.at_tensor_peak = tensors.at_peak
        return whole

    def largest_unseen_bytes(self) -> int:
        """Bytes of the largest block without a verdict."""
        blocks = [*self._changes, *self._standing]
        return max((block.nbytes for block in blocks if block.serial not in self._known), default=0)

    def _category(self, serial: int) -> Category | None:
        return self._known.get(serial, self._nobody)[1]

    def _tensors(self, blocks: Iterable[Change]) -> Iterable[Change]:
        return (block for block in blocks if self._category(block.serial) is not Category.KERNEL_WORKSPACE)


def _bytes(blocks: Iterable[Change]) -> list[tuple[int, int]]:
    return [(block.serial, block.nbytes) for block in blocks]


def _add_rounding(blocks: Iterable[Change], known: Collection[int]) -> Iterator[Change]:
    for block in blocks:
        yield block
        if -block.serial in known and (rounding := page_locked_rounding(abs(block.nbytes))):
            yield Change(-block.serial, rounding if block.nbytes > 0 else -rounding, block.operation)


def _working_memory(changes: Iterable[Change]) -> set[int]:
    """Serial numbers of blocks that were taken and freed under one operation, or by a collective."""
    taken: dict[int, int] = {}
    short_lived = set()
    for change in changes:
        if change.nbytes > 0:
            taken[change.serial] = change.operation
        elif (under := taken.get(change.serial)) and under in {change.operation, GLOO}:
            short_lived.add(change.serial)
    return short_lived
