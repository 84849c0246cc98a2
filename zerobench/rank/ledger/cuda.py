"""Exact totals and peaks of torch's CUDA caching allocator, and its own history of every block.

The history (torch.cuda.memory._record_memory_history, c10/cuda/CUDACachingAllocator.h) has each allocation and each
free with address and size; a block is matched to the storage seen at its address with its size, in order. A block that
no tensor was seen to own, taken and freed within the phase, is a kernel's workspace and counts as a temporary. One that
stays belongs to the matrix library if it has exactly the size of its workspaces; any other is unattributed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from zerobench.common.vocabulary import Category
from zerobench.rank.ledger.allocator_snapshot import peak_occupied, snapshot_of, workspace_sizes
from zerobench.rank.ledger.device_peaks import PHASE
from zerobench.rank.ledger.replay import Composition, replay
from zerobench.rank.ledger.storages import Storage

_HISTORY_ENTRIES = 4_000_000
_ALLOCATION = "alloc"
_FREE = "free_requested"
_MOVES = {_ALLOCATION, _FREE}
_IN_USE = "active_allocated"


@dataclass(eq=False, slots=True)
class Block:
    """One allocation in the allocator's history."""

    address: int
    nbytes: int
    freed: bool = False
    storage: Storage | None = None
    from_before: bool = False
    """True if allocated before the history began."""


@dataclass(frozen=True)
class AllocatorTotals:
    """Totals of a caching allocator, or of a model of one, over one phase."""

    live_bytes: int
    """Allocated at the end, in whole blocks."""
    peak_bytes: int
    live_rounding_bytes: int
    """Excess over the requested bytes: blocks are multiples of 512 bytes, and small remainders are not split off."""
    peak_rounding_bytes: int


@contextmanager
def recorded_history() -> Iterator[None]:
    """Record the allocator's history, without stacks, while open."""
    PHASE.watch()
    _record()
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def start_phase(device: torch.device) -> None:
    """Reset the peak and the history, so that both cover the phase alone."""
    torch.cuda.synchronize(device)
    PHASE.begin(device)
    _record()


def _record() -> None:
    torch.cuda.memory._record_memory_history(
        enabled="all", context=None, max_entries=_HISTORY_ENTRIES, clear_history=True
    )


def composition(
    device: torch.device,
    live: Collection[Storage],
    events: Sequence[tuple[Storage, int]],
    category_of: Callable[[Storage], Category | None],
) -> Composition[Category | None]:
    """Categories of the phase with the allocator's totals; the unnamed remainder is under None."""
    torch.cuda.synchronize(device)
    stats = PHASE.stats(device)
    trace, segments = snapshot_of(device)
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] == _IN_USE]
    held = [(block["address"], block["requested_size"]) for block in blocks]
    result = compose(trace, live, events, category_of, held, workspace_sizes(device))
    # A freed block that another stream still uses counts as requested but no longer as allocated.
    requested_peak_bytes = min(stats["requested_bytes.all.peak"], result.total_peak)
    totals = AllocatorTotals(
        live_bytes=stats["allocated_bytes.all.current"],
        peak_bytes=stats["allocated_bytes.all.peak"],
        live_rounding_bytes=sum(block["size"] - block["requested_size"] for block in blocks),
        peak_rounding_bytes=stats["allocated_bytes.all.peak"] - requested_peak_bytes,
    )
    result.peak_occupied = peak_occupied(trace, segments, stats)
    return apply_totals(result, totals)


def compose(
    trace: Sequence[dict[str, Any]],
    live: Collection[Storage],
    events: Sequence[tuple[Storage, int]],
    category_of: Callable[[Storage], Category | None],
    held: Iterable[tuple[int, int]] = (),
    workspaces: Container[int] = (),
) -> Composition[Category | None]:
    """Categories at the peak of the allocator's own history of one phase.

    `trace` is one device's trace in the allocator's snapshot; `live` the storages at the end of the phase and `events`
    their births and deaths within it; `held` address and size of all blocks at its end; `workspaces` the sizes of the
    matrix library's workspaces.
    """
    changes = _changes(trace, events)
    in_trace = {block.storage for block, _ in changes}
    standing = [block for block, delta in changes if delta > 0 and not block.freed]
    in_trace |= _unseen_births(standing, live, in_trace)
    standing += [Block(s.pointer, s.nbytes, storage=s) for s in live if s.device == "cuda" and s not in in_trace]
    known = {block.address for block in standing}
    standing += [Block(at, nbytes, from_before=True) for at, nbytes in held if at not in known]
    blocks = dict.fromkeys([*standing, *(block for block, _ in changes)])
    categories = {block: _category(block, category_of, workspaces) for block in blocks}  # each is needed several times
    return replay(
        [(block, block.nbytes) for block in standing],
        changes,
        categories.__getitem__,
        lambda block: block.storage,
    )


def _unseen_births(
    standing: Iterable[Block], live: Iterable[Storage], in_trace: Container[Storage | None]
) -> set[Storage]:
    """Match standing blocks to live storages whose birth was not seen (start-up, when it is looked back on), and return
    those storages. Otherwise both would count, and a block of a workspace's size would be taken for a workspace.
    """
    at = {s.pointer: s for s in live if s.device == "cuda" and s not in in_trace}
    storages = set()
    for block in standing:
        storage = at.get(block.address)
        if block.storage is None and storage is not None and storage.nbytes == block.nbytes:
            block.storage = storage
            storages.add(storage)
    return storages


def apply_totals(result: Composition[Category | None], totals: AllocatorTotals) -> Composition[Category | None]:
    """Complete the named bytes to the allocator's totals: rounding gets a category, the remainder goes under None."""
    result.live[Category.ALLOCATOR_ROUNDING] = totals.live_rounding_bytes
    result.at_peak[Category.ALLOCATOR_ROUNDING] = totals.peak_rounding_bytes
    result.own_peak[Category.ALLOCATOR_ROUNDING] = max(totals.live_rounding_bytes, totals.peak_rounding_bytes)
    result.live[None] = totals.live_bytes - (result.live.total() - result.live[None])
    result.at_peak[None] = totals.peak_bytes - (result.at_peak.total() - result.at_peak[None])
    result.own_peak[None] = max(result.own_peak[None], result.live[None], result.at_peak[None])
    result.total_peak = totals.peak_bytes
    return result


def pinned_bytes() -> int | None:
    """Page-locked host memory in torch's pinned allocator now; None if this torch keeps no count."""
    stats = getattr(torch.cuda, "host_memory_stats", None)
    return None if stats is None else int(stats().get("allocated_bytes.current", 0))


def _changes(trace: Sequence[dict[str, Any]], events: Sequence[tuple[Storage, int]]) -> list[tuple[Block, int]]:
    """The trace as changes in bytes, each block matched to the storage that owned it, if one was seen."""
    born = _group_by_address(s for s, delta in events if delta > 0)
    died = _group_by_address(s for s, delta in events if delta < 0)
    standing: dict[int, Block | None] = {}
    changes: list[tuple[Block, int]] = []
    moves = [(e["action"] == _ALLOCATION, e["addr"], e["size"]) for e in trace if e["action"] in _MOVES]
    stays = _last_blocks(moves)
    for place, (is_birth, address, nbytes) in enumerate(moves):
        if is_birth:
            is_last = stays.get((address, nbytes), place) == place
            block = standing[address] = Block(address, nbytes, storage=_take(born, address, nbytes, is_last=is_last))
            changes.append((block, nbytes))
        else:
            block = standing.pop(address, None) or Block(
                address, nbytes, storage=_take(died, address, nbytes), from_before=True
            )
            block.freed = True
            changes.append((block, -nbytes))
    return changes


def _group_by_address(storages: Iterable[Storage]) -> dict[int, list[Storage]]:
    """CUDA storages by address, in order, each once."""
    by_address: dict[int, list[Storage]] = {}
    for storage in dict.fromkeys(storages):
        if storage.device == "cuda":
            by_address.setdefault(storage.pointer, []).append(storage)
    return by_address


def _last_blocks(moves: Sequence[tuple[bool, int, int]]) -> dict[tuple[int, int], int]:
    """Index of the move that allocated each block standing at the end, by address and size."""
    standing: dict[int, tuple[int, int]] = {}
    for place, (is_birth, address, nbytes) in enumerate(moves):
        if is_birth:
            standing[address] = nbytes, place
        else:
            standing.pop(address, None)
    return {(address, nbytes): place for address, (nbytes, place) in standing.items()}


def _take(waiting: dict[int, list[Storage]], address: int, nbytes: int, *, is_last: bool = True) -> Storage | None:
    """Take the next storage at this address with this size; workspaces that no tensor owned may come between. A live
    storage owns the block that stands at the end, never one that was freed before.
    """
    for storage in waiting.get(address, []):
        if storage.nbytes == nbytes and (is_last or not storage.alive):
            waiting[address].remove(storage)
            return storage
    return None


def _category(
    block: Block, category_of: Callable[[Storage], Category | None], workspaces: Container[int]
) -> Category | None:
    if block.storage is not None:
        return category_of(block.storage)
    if block.nbytes in workspaces and not block.freed:
        return Category.WORKSPACES
    return Category.TEMPORARIES if block.freed and not block.from_before else None
