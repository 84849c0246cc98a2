"""Memory that torch's CUDA caching allocator reserves with `expandable_segments:True`, without a GPU and without torch.

A model of ExpandableSegment in c10/cuda/CUDACachingAllocator.cpp, as in torch 2.11 to 2.13 (`get_free_block`,
`find_expandable_block`, `map_block`, `try_allocate_expandable_block`, `unmap_block`): each stream has one range of
addresses for small blocks and one for large ones, of which pages are mapped as they are needed. Blocks of any sizes lie
beside each other, so that hardly anything is lost between them. A test holds it against torch's own allocator.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from zerobench.estimate.allocator.caching_allocator import (
    LARGE_SEGMENT_BYTES,
    LARGEST_SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorCounters,
    OutOfMemory,
    block_bytes,
)


class _Range:
    """The addresses of one stream's small or large blocks; the last block is what was never mapped."""

    def __init__(self, page_bytes: int, size_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.free: list[tuple[int, int, _Block]] = []
        """Mapped free blocks by size and address."""
        self.unmapped: list[tuple[int, int, _Block]] = []
        """Those that no memory lies under, by address; the first number is 0."""
        first = _Block(self, 0, size_bytes, mapped=False)
        _insert(first)


class _Block:
    """A piece of a range, neighbours in order of addresses."""

    __slots__ = ("address", "in_use", "mapped", "next", "previous", "requested", "size", "within")

    def __init__(self, within: _Range, address: int, size: int, *, mapped: bool) -> None:
        self.within = within
        self.address = address
        self.size = size
        self.mapped = mapped
        self.in_use = False
        self.previous: _Block | None = None
        self.next: _Block | None = None
        self.requested = 0

    def __lt__(self, other: _Block) -> bool:
        return self.address < other.address

    @property
    def expandable_bytes(self) -> int:
        """Size it can grow to, which counts when the best fit is looked for."""
        after = self.next
        return self.size + (after.size if after is not None and not after.mapped else 0)

    @property
    def whole_pages(self) -> tuple[int, int]:
        """From which address to which it can be unmapped; equal where it has no whole page."""
        page = self.within.page_bytes
        begin, end = -(-self.address // page) * page, (self.address + self.size) // page * page
        return begin, max(begin, end)


class ExpandableAllocator(AllocatorCounters):
    """torch's allocator for one device with expandable segments, of which whole pages are given back."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        """An empty allocator; `capacity_bytes` is what the device has for torch, None is endless."""
        super().__init__(capacity_bytes)
        self._releasable = 0
        self._ranges: dict[tuple[int, bool], _Range] = {}

    def _give(self, nbytes: int, stream: int) -> _Block:
        size = block_bytes(nbytes)
        within = self._range(stream, size)
        block = self._best_fit(within, size) or self._mapped(within, size)
        if block.size > size:
            self._insert(_split(block, size))
        block.in_use = True
        block.requested = nbytes
        self._count(size, nbytes)
        self.occupied_bytes = self.reserved_bytes - self._releasable
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self.peak_occupied_bytes = max(self.peak_occupied_bytes, self.occupied_bytes)
        return block

    def _take_back(self, block: _Block) -> None:
        block.in_use = False
        self._insert(self._merged(block))
        self.occupied_bytes = self.reserved_bytes - self._releasable

    def empty_cache(self) -> None:
        """Give every whole page that nothing lies in back to the driver, as torch.cuda.empty_cache() does."""
        for within in self._ranges.values():
            for _, _, block in list(within.free):
                self._unmap(block)

    def _range(self, stream: int, size: int) -> _Range:
        key = (stream, size <= LARGEST_SMALL_BYTES)
        if key not in self._ranges:
            page = SMALL_SEGMENT_BYTES if key[1] else LARGE_SEGMENT_BYTES
            self._ranges[key] = _Range(page, _ENDLESS_BYTES // page * page)
        return self._ranges[key]

    def _best_fit(self, within: _Range, size: int) -> _Block | None:
        """The smallest mapped free block, by what it can grow to, that is large enough (get_free_block)."""
        place = bisect_left(within.free, (size, -1, None))  # the first two decide
        if place == len(within.free):
            return None
        while place + 1 < len(within.free):
            here, after = within.free[place][2], within.free[place + 1][2]
            if after.expandable_bytes >= here.expandable_bytes:
                break
            place += 1
        block = within.free[place][2]
        self._remove(block)
        return block

    def _mapped(self, within: _Range, size: int) -> _Block:
        """A free block of at least `size`, with pages mapped for it; where none are left, after others were given back.

        Raises OutOfMemory.
        """
        try:
            return self._map(_with_address_space(within, size), size)
        except OutOfMemory:
            self.alloc_retries += 1
            self.empty_cache()
            return self._map(_with_address_space(within, size), size)

    def _map(self, block: _Block, size: int) -> _Block:
        """Map pages from `block` on until it has `size` bytes (try_allocate_expandable_block)."""
        if not block.mapped:
            block = self._map_part(block, min(block.size, size))
        while block.size < size:
            after = block.next
            if after is None:
                raise AssertionError("an endless range has an end")
            block = self._map_part(after, min(after.size, size - block.size)) if not after.mapped else self._join(block)
        self._remove(block)
        return block

    def _join(self, block: _Block) -> _Block:
        """`block` with the free mapped one after it."""
        self._remove(block)
        joined = self._merged(block)
        self._insert(joined)
        return joined

    def _map_part(self, block: _Block, size: int) -> _Block:
        """Map the pages under the first `size` bytes of `block`, and join what is free beside it (map_block)."""
        page = block.within.page_bytes
        mapped = -(-size // page) * page
        if self.capacity_bytes is not None and self.reserved_bytes + mapped > self.capacity_bytes:
            raise OutOfMemory(mapped, self.capacity_bytes - self.reserved_bytes)
        self._remove(block)
        if mapped < block.size:
            self._insert(_split(block, mapped))
        block.mapped = True
        self.reserved_bytes += mapped
        joined = self._merged(block)
        self._insert(joined)
        return joined

    def _unmap(self, block: _Block) -> None:
        """Give back the whole pages of a free block (unmap_block)."""
        begin, end = block.whole_pages
        if begin == end:
            return
        self._remove(block)
        middle = block
        if begin > block.address:
            middle = _split(block, begin - block.address)
            self._insert(block)
        if end < middle.address + middle.size:
            self._insert(_split(middle, end - middle.address))
        middle.mapped = False
        self.reserved_bytes -= middle.size
        self._insert(self._merged(middle))

    def _merged(self, block: _Block) -> _Block:
        """`block`, which is in no list, with the free blocks beside it that are mapped, or not, as it is."""
        for other in (block.previous, block.next):
            if other is not None and not other.in_use and other.mapped == block.mapped:
                self._remove(other)
                block = _joined(min(other, block), max(other, block))
        return block

    def _insert(self, block: _Block) -> None:
        _insert(block)
        if block.mapped:
            begin, end = block.whole_pages
            self._releasable += end - begin

    def _remove(self, block: _Block) -> None:
        blocks, entry = _listed(block)
        del blocks[bisect_left(blocks, entry)]
        if block.mapped:
            begin, end = block.whole_pages
            self._releasable -= end - begin


_ENDLESS_BYTES = 2**50
"""A range is never used up: torch makes one of nine eighths of the device's memory and, rarely, another."""


def _listed(block: _Block) -> tuple[list[tuple[int, int, _Block]], tuple[int, int, _Block]]:
    """The list that a free block belongs in, and its entry there."""
    if block.mapped:
        return block.within.free, (block.size, block.address, block)
    return block.within.unmapped, (0, block.address, block)


def _insert(block: _Block) -> None:
    insort(*_listed(block))


def _with_address_space(within: _Range, size: int) -> _Block:
    """The block from which pages can be mapped for `size`, a free one before it included (find_expandable_block)."""
    for _, _, unmapped in within.unmapped:
        before = unmapped.previous
        block = before if before is not None and not before.in_use else unmapped
        room = 0
        end: _Block | None = block
        while end is not None and not end.in_use and room < size:
            room += end.size
            end = end.next
        if room >= size:
            return block
    raise AssertionError("an endless range has an end")


def _split(block: _Block, size: int) -> _Block:
    """Leave `block` its first `size` bytes; the rest, which is in no list."""
    rest = _Block(block.within, block.address + size, block.size - size, mapped=block.mapped)
    rest.previous, rest.next = block, block.next
    if rest.next is not None:
        rest.next.previous = rest
    block.next = rest
    block.size = size
    return rest


def _joined(lower: _Block, upper: _Block) -> _Block:
    lower.size += upper.size
    lower.next = upper.next
    if lower.next is not None:
        lower.next.previous = lower
    return lower
