"""Model of torch's caching allocator on the simulated GPU, and the count of storages that feeds it every birth and
death.

The count is fed from the simulation itself: one Python mode for each operation instead of two.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Self

import torch

from zerobench.common.malloc import MAPPED_FROM_BYTES
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.estimate.allocator.allocator_settings import AllocatorModel, allocator_model, device_row
from zerobench.estimate.allocator.caching_allocator import OutOfMemory
from zerobench.estimate.clock.trace import PageMapping, tell
from zerobench.rank.ledger.cuda import AllocatorTotals
from zerobench.rank.ledger.recorder import DeviceRows, RowKey
from zerobench.rank.ledger.storages import Storage, StorageCounter
from zerobench.rank.worlds.simulation.device import DEVICE
from zerobench.rank.worlds.simulation.streams import current_number
from zerobench.rank.worlds.simulation.tensors import SimulatedTensors
from zerobench.records.records import DeviceMemory

DeviceEvent = tuple[Storage, int, int]
"""A storage on the device, its growth in bytes, and the number of the current stream."""


class SimulatedCounter(StorageCounter):
    """A StorageCounter without a mode of its own, which records device events for the allocator's model."""

    _counts_fakes = True

    def __init__(self, observe: Callable[[], object], tensors: SimulatedTensors) -> None:
        super().__init__(observe)
        self._tensors = tensors
        self._device_events: list[DeviceEvent] = []
        self._touched_bytes: dict[int, int] = {}
        """End of the written part of each storage that malloc maps, by serial number."""

    def __enter__(self) -> Self:
        self._tensors.observer = self.see
        self.watch_resizes()
        return self

    def __exit__(self, *_: object) -> None:
        self._tensors.observer = None
        self.leave_resizes()

    def take_device_events(self) -> list[DeviceEvent]:
        """Return the device events since the last call."""
        events, self._device_events = self._device_events, []
        return events

    def wrote(self, out: object) -> None:
        """Report the page mapping of a result that an operation on the CPU has written: new pages are mapped then."""
        if not isinstance(out, torch.Tensor):
            return
        entry = self.find(out)
        if entry is None or entry.nbytes < MAPPED_FROM_BYTES:
            return
        begin = int(out.storage_offset()) * out.element_size()
        touched, end = self._touched_bytes.get(entry.serial, 0), begin + out.nbytes
        if end > touched:
            tell(PageMapping(end - max(begin, touched)))
            self._touched_bytes[entry.serial] = end

    def _grow(self, entry: Storage, delta: int) -> None:
        super()._grow(entry, delta)
        if entry.device == DEVICE:
            self._device_events.append((entry, delta, current_number()))


class _Play(DeviceRows):
    """One allocator's figures at the end of each phase."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.rows: dict[RowKey, DeviceMemory] = {}
        self.allocator = allocator_model(capacity_bytes, os.environ)

    def note(self, step: StepKind, phase: Phase, peak_occupied_bytes: int | None = None) -> None:
        """Keep the allocator's figures."""
        self.keep(device_row(self.allocator, step, phase))


class SimulatedRows(DeviceRows):
    """Figures of the GPU's allocator or, after a refusal, of one that has had boundless room from the beginning.

    A plan asks how much memory is missing. An allocator that refuses has released its free segments before, which one
    with room keeps and fills, so the memory in use plus the refused request is too low. Emulated trials are played
    again for the same reason (zerobench.rank.loop.forked_trial).
    """

    def __init__(self, counter: SimulatedCounter, room: Callable[[], int]) -> None:
        """`room`: returns the bytes that the device has for torch now, without those of communicators."""
        self._counter = counter
        self._room = room
        self._plays = [_Play(room()), _Play(None)]
        self._sizes: dict[int, int] = {}
        self.rows = self._plays[0].rows

    def start(self) -> None:
        """Reset the peaks."""
        for allocator in self._allocators():
            allocator.reset_peaks()

    def note(self, step: StepKind, phase: Phase, peak_occupied_bytes: int | None = None) -> None:
        """Update the model and keep its figures."""
        self._allocators()
        for play in self._plays:
            play.note(step, phase)

    def totals(self) -> AllocatorTotals:
        """Totals of the current phase so far."""
        allocator = self._allocators()[0]
        return AllocatorTotals(
            live_bytes=allocator.allocated_bytes,
            peak_bytes=allocator.peak_allocated_bytes,
            live_rounding_bytes=allocator.allocated_bytes - allocator.requested_bytes,
            peak_rounding_bytes=allocator.peak_allocated_bytes - allocator.peak_requested_bytes,
        )

    def empty_cache(self) -> None:
        """Release free segments."""
        for allocator in self._allocators():
            allocator.empty_cache()

    def _allocators(self) -> list[AllocatorModel]:
        """Update and return the allocators: the GPU's, unless it has refused, and the one with room.

        A storage that changes its size is freed and allocated again, as `resize_` does.
        """
        sizes = self._sizes
        for play in self._plays[:-1]:
            play.allocator.capacity_bytes = self._room()
        for entry, delta, stream in self._counter.take_device_events():
            old = sizes.pop(entry.serial, 0)
            if old:
                for play in self._plays:
                    play.allocator.free(entry.serial)
            if old + delta:
                sizes[entry.serial] = old + delta
                self._malloc(entry.serial, old + delta, stream)
        return [play.allocator for play in self._plays]

    def _malloc(self, key: int, nbytes: int, stream: int) -> None:
        """Allocate; after a refusal only the allocator with room continues, with at least the refused total as need."""
        *bounded, with_room = self._plays
        with_room.allocator.malloc(key, nbytes, stream)
        for play in bounded:
            try:
                play.allocator.malloc(key, nbytes, stream)
            except OutOfMemory as refusal:
                least = play.allocator.reserved_bytes + refusal.bytes_asked
                with_room.allocator.peak_occupied_bytes = max(with_room.allocator.peak_occupied_bytes, least)
                self._plays, self.rows = [with_room], with_room.rows
