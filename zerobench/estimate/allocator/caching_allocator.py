"""Memory that torch's CUDA caching allocator reserves for a sequence of allocations, without a GPU and without torch.

A model of c10/cuda/CUDACachingAllocator.cpp with default settings, as in torch 2.11 to 2.13 (`round_size`, `get_pool`,
`get_allocation_size`, `get_free_block`, `should_split`, `alloc_found_block`, `free_block`, `try_merge_blocks`,
`release_cached_blocks`); the constants are those of c10/core/AllocatorConfig.h, and a test holds them against the
installed torch. Sizes are exact, and where a block lies within its segment too. Of free blocks of equal size in several
segments torch takes that of the segment made first since 2.12, wherever the driver placed it, and before that the
lowest, which on an H100 is the one made last (benchmarks/README.md). Addresses rise or fall here as that wants.

Each stream has free blocks of its own, so that what DeepSpeed makes on a side stream (`overlap_comm`, prefetching) is
never reused by the main one. What that leaves out: a block that `record_stream` marked comes back at once here, and
with a real device only when that stream has passed it, so that more may be reserved there. Expandable segments,
`max_split_size_mb`, garbage collection and private pools (CUDA graphs) are off by default and not modelled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MIN_BLOCK_BYTES = 512
"""kMinBlockSize: blocks are multiples of it."""
LARGEST_SMALL_BYTES = 2**20
"""kSmallSize: up to here a block comes from the small pool."""
SMALL_SEGMENT_BYTES = 2 * 2**20
"""kSmallBuffer: the size of each segment of the small pool."""
LARGE_SEGMENT_BYTES = 20 * 2**20
"""large_segment_size: the segment made for a block of the large pool below LEAST_OWN_SEGMENT_BYTES."""
LEAST_OWN_SEGMENT_BYTES = 10 * 2**20
"""kMinLargeAlloc: from here on a block that fits nowhere gets a segment made to its measure."""
SEGMENT_ROUNDING_BYTES = 2 * 2**20
"""kRoundLarge: which is a multiple of this."""

_ADDRESS_BITS = 64


class OutOfMemory(Exception):  # noqa: N818 -- named as torch and the trial's status name it
    """The device cannot hold another segment, even after all cached ones were given back."""

    def __init__(self, bytes_asked: int, bytes_free: int) -> None:
        """`bytes_asked` is the size of the segment, `bytes_free` what the capacity leaves, as torch reports them."""
        super().__init__(f"out of device memory: {bytes_asked} bytes asked, {bytes_free} free")
        self.bytes_asked = bytes_asked
        self.bytes_free = bytes_free


@dataclass(frozen=True)
class Segment:
    """One piece of memory from the driver, as torch.cuda.memory_snapshot() shows it."""

    address: int
    size_bytes: int
    blocks: tuple[tuple[int, bool], ...]
    """Size in bytes and whether it is in use, by address; they fill the segment."""


class _Pool:
    """Free blocks of one kind, sorted by size and then by address."""

    __slots__ = ("blocks", "keys", "unsplit_bytes")

    def __init__(self, unsplit_bytes: int) -> None:
        self.keys: list[int] = []
        """Size and address of each free block in one number: whole numbers compare faster than pairs."""
        self.blocks: dict[int, _Block] = {}
        self.unsplit_bytes = unsplit_bytes
        """A rest of at most this much stays with its block (should_split)."""


class _Block:
    """A piece of a segment, in use or free."""

    __slots__ = ("address", "free", "next", "pool", "previous", "requested", "size")

    def __init__(
        self, address: int, size: int, pool: _Pool, previous: _Block | None = None, following: _Block | None = None
    ) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.previous = previous
        """Its neighbour at the lower address in the same segment."""
        self.next = following
        self.free = True
        self.requested = 0

    @property
    def is_segment(self) -> bool:
        """Return whether it is all of its segment."""
        return self.previous is None and self.next is None


class AllocatorCounters:
    """Counters of models of torch's allocators, in bytes.

    `allocated_bytes`, `requested_bytes`, `reserved_bytes` and their peaks mean what torch.cuda.memory_stats() says
    under `<name>.all.current` and `.peak`; so does `alloc_retries`. `occupied_bytes` is what stays reserved where all
    that nothing lies in is given back, which happens before an allocation fails. `capacity_bytes` is what the device
    has for torch, without CUDA context, NCCL and other processes; None is endless.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.requested_bytes = self.peak_requested_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.occupied_bytes = self.peak_occupied_bytes = 0
        self.alloc_retries = 0
        self._live: dict[int, Any] = {}

    def reset_peaks(self) -> None:
        """Let the peaks begin anew from what is held now (torch.cuda.reset_peak_memory_stats)."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_requested_bytes = self.requested_bytes
        self.peak_reserved_bytes = self.reserved_bytes
        self.peak_occupied_bytes = self.occupied_bytes

    def malloc(self, key: int, nbytes: int, stream: int = 0) -> None:
        """Allocate `nbytes` under the name `key` while `stream` is current; nothing is taken for 0 bytes, as in torch.

        Raises ValueError: `key` is in use or `nbytes` below 0; OutOfMemory: it does not fit in the capacity.
        """
        if key in self._live or nbytes < 0:
            raise ValueError(f"malloc({key}, {nbytes}): the key is in use, or the size is negative")
        self._live[key] = self._give(nbytes, stream) if nbytes else None

    def free(self, key: int) -> None:
        """Give back what `key` names; its block joins the free ones beside it and stays reserved.

        Raises KeyError: nothing is allocated under `key`.
        """
        block = self._live.pop(key)
        if block is not None:
            self._count(-block.size, -block.requested)
            self._take_back(block)

    def _give(self, nbytes: int, stream: int) -> Any:
        """A block for `nbytes`, counted."""
        raise NotImplementedError

    def _take_back(self, block: Any) -> None:
        raise NotImplementedError

    def _count(self, allocated_bytes: int, requested_bytes: int) -> None:
        """A block has been given out, or, of negative sizes, taken back."""
        self.allocated_bytes += allocated_bytes
        self.requested_bytes += requested_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self.peak_requested_bytes = max(self.peak_requested_bytes, self.requested_bytes)


def block_bytes(nbytes: int) -> int:
    """The block that `nbytes` are given (round_size)."""
    return (nbytes + MIN_BLOCK_BYTES - 1) & -MIN_BLOCK_BYTES


class CachingAllocator(AllocatorCounters):
    """torch's allocator for one device. `occupied_bytes` is the size of the segments that something lies in."""

    def __init__(self, capacity_bytes: int | None = None, *, latest_first: bool = False) -> None:
        """An empty allocator. `latest_first`: of free blocks of equal size that of the segment made last is taken."""
        super().__init__(capacity_bytes)
        self._pools: dict[tuple[int, bool], _Pool] = {}
        """By stream and whether blocks are small."""
        self._segments: dict[int, _Block] = {}
        """The first block of each segment by its address: splitting and merging leave the lower block standing."""
        self._latest_first = latest_first
        self._next_address = 1 << _ADDRESS_BITS - 1

    def _give(self, nbytes: int, stream: int) -> _Block:
        size = block_bytes(nbytes)
        pool = self._pool(stream, size)
        keys = pool.keys
        place = bisect_left(keys, size << _ADDRESS_BITS)
        block = pool.blocks.pop(keys.pop(place)) if place < len(keys) else self._new_segment(size, pool)
        if block.is_segment:
            self.occupied_bytes += block.size
            self.peak_occupied_bytes = max(self.peak_occupied_bytes, self.occupied_bytes)
        if block.size - size > pool.unsplit_bytes:
            _split(block, size)
        block.free = False
        block.requested = nbytes
        self._count(block.size, nbytes)
        return block

    def _take_back(self, block: _Block) -> None:
        pool, previous, following = block.pool, block.previous, block.next
        if previous is not None and previous.free:
            _take(pool, previous)
            _absorb(previous, block)
            block = previous
        if following is not None and following.free:
            _take(pool, following)
            _absorb(block, following)
        if block.is_segment:
            self.occupied_bytes -= block.size
        block.free = True
        _put(pool, block)

    def empty_cache(self) -> None:
        """Give every segment that nothing uses back to the driver, as torch.cuda.empty_cache() does."""
        for pool in self._pools.values():
            whole = [block for block in pool.blocks.values() if block.is_segment]
            for block in whole:
                _take(pool, block)
                del self._segments[block.address]
                self.reserved_bytes -= block.size

    def segments(self) -> Iterator[Segment]:
        """Segments held from the driver, by address."""
        for address in sorted(self._segments):
            blocks = tuple((block.size, not block.free) for block in _chain(self._segments[address]))
            yield Segment(address, sum(size for size, _ in blocks), blocks)

    def _pool(self, stream: int, size: int) -> _Pool:
        """Free blocks that one of `size` may come from. Sizes are multiples of 512, so in a pool of small ones any rest
        at all is at least kMinBlockSize.
        """
        key = (stream, size <= LARGEST_SMALL_BYTES)
        if key not in self._pools:
            self._pools[key] = _Pool(unsplit_bytes=0 if key[1] else LARGEST_SMALL_BYTES)
        return self._pools[key]

    def _new_segment(self, size: int, pool: _Pool) -> _Block:
        """A block that is a whole new segment, large enough for `size`."""
        nbytes = segment_bytes(size)
        if self.capacity_bytes is not None and self.reserved_bytes + nbytes > self.capacity_bytes:
            self.alloc_retries += 1
            self.empty_cache()
            if self.reserved_bytes + nbytes > self.capacity_bytes:
                raise OutOfMemory(nbytes, self.capacity_bytes - self.reserved_bytes)
        address = self._next_address - (nbytes if self._latest_first else 0)
        self._next_address = address + (0 if self._latest_first else nbytes)
        block = self._segments[address] = _Block(address, nbytes, pool)
        self.reserved_bytes += nbytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block


def segment_bytes(block_bytes: int) -> int:
    """The segment that a block of `block_bytes` makes the allocator ask the driver for (get_allocation_size)."""
    if block_bytes <= LARGEST_SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < LEAST_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-block_bytes // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES


def _chain(block: _Block | None) -> Iterator[_Block]:
    """`block` and all behind it in its segment."""
    while block is not None:
        yield block
        block = block.next


def _split(block: _Block, size: int) -> None:
    """Leave `block` its first `size` bytes and make the rest free."""
    rest = _Block(block.address + size, block.size - size, block.pool, block, block.next)
    if rest.next is not None:
        rest.next.previous = rest
    block.next = rest
    block.size = size
    _put(block.pool, rest)


def _absorb(block: _Block, following: _Block) -> None:
    """Join `following`, which lies right behind it, to `block`."""
    block.size += following.size
    block.next = following.next
    if block.next is not None:
        block.next.previous = block


def _put(pool: _Pool, block: _Block) -> None:
    key = block.size << _ADDRESS_BITS | block.address
    insort(pool.keys, key)
    pool.blocks[key] = block


def _take(pool: _Pool, block: _Block) -> None:
    key = block.size << _ADDRESS_BITS | block.address
    del pool.keys[bisect_left(pool.keys, key)]
    del pool.blocks[key]
