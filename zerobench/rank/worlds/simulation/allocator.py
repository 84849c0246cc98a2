"""What torch's caching allocator would hold on the simulated GPU: its model, fed with every birth and death."""

from __future__ import annotations

import os
from collections.abc import Callable

from zerobench.common.vocabulary import Phase, StepKind
from zerobench.estimate.allocator.allocator_settings import AllocatorModel, allocator_model, device_row
from zerobench.estimate.allocator.caching_allocator import OutOfMemory
from zerobench.rank.ledger.cuda import AllocatorTotals
from zerobench.rank.ledger.recorder import DeviceRows, RowKey
from zerobench.rank.worlds.simulation.storages import SimulatedCounter
from zerobench.records.records import DeviceMemory


class _Play(DeviceRows):
    """One allocator's figures at the end of each phase."""

    def __init__(self, capacity_bytes: int | None) -> None:
        self.rows: dict[RowKey, DeviceMemory] = {}
        self.allocator = allocator_model(capacity_bytes, os.environ)

    def note(self, step: StepKind, phase: Phase, peak_occupied_bytes: int | None = None) -> None:
        """Keep the allocator's figures."""
        self.keep(device_row(self.allocator, step, phase))


class SimulatedRows(DeviceRows):
    """Figures of the GPU's allocator, or, once that has refused, of one that has had room from the beginning.

    How much is missing is what a plan asks. The allocator that refuses has given back its free segments before, which
    one with room keeps and fills: what is left and what is asked for then say too little. Emulated trials are played
    again for the same reason (zerobench.rank.loop.with_room).
    """

    def __init__(self, counter: SimulatedCounter, room: Callable[[], int]) -> None:
        """`room` says the bytes that the device has for torch now: each communicator takes of it."""
        self._counter = counter
        self._room = room
        self._plays = [_Play(room()), _Play(None)]
        self._sizes: dict[int, int] = {}
        self.rows = self._plays[0].rows

    def start(self) -> None:
        """Let peaks begin anew."""
        for allocator in self._allocators():
            allocator.reset_peaks()

    def note(self, step: StepKind, phase: Phase, peak_occupied_bytes: int | None = None) -> None:
        """Bring the model up to date and keep its figures."""
        self._allocators()
        for play in self._plays:
            play.note(step, phase)

    def totals(self) -> AllocatorTotals:
        """Of the phase under way, until now."""
        allocator = self._allocators()[0]
        return AllocatorTotals(
            live_bytes=allocator.allocated_bytes,
            peak_bytes=allocator.peak_allocated_bytes,
            live_rounding_bytes=allocator.allocated_bytes - allocator.requested_bytes,
            peak_rounding_bytes=allocator.peak_allocated_bytes - allocator.peak_requested_bytes,
        )

    def empty_cache(self) -> None:
        """Free segments go back."""
        for allocator in self._allocators():
            allocator.empty_cache()

    def _allocators(self) -> list[AllocatorModel]:
        """The GPU's, unless it has refused, and the one with room, after all that has happened until now.

        A storage that changes its size is given back and asked for anew, as `resize_` does.
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
        """After a refusal the one with room goes on alone; it needs no less than was held and asked for then."""
        *bounded, with_room = self._plays
        with_room.allocator.malloc(key, nbytes, stream)
        for play in bounded:
            try:
                play.allocator.malloc(key, nbytes, stream)
            except OutOfMemory as refusal:
                least = play.allocator.reserved_bytes + refusal.bytes_asked
                with_room.allocator.peak_occupied_bytes = max(with_room.allocator.peak_occupied_bytes, least)
                self._plays, self.rows = [with_room], with_room.rows
