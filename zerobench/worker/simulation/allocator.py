"""What torch's caching allocator would hold on the simulated GPU: its model, fed with every birth and death."""

from __future__ import annotations

import os

from zerobench.memory.allocator_settings import allocator_model
from zerobench.memory.caching_allocator import OutOfMemory
from zerobench.memory.cuda import AllocatorTotals
from zerobench.memory.recorder import DeviceRows, RowKey
from zerobench.records import DeviceMemory, Phase, StepKind
from zerobench.worker.simulation.storages import SimulatedCounter


class SimulatedRows(DeviceRows):
    """Figures of the allocator's model at the end of each phase."""

    def __init__(self, counter: SimulatedCounter, capacity_bytes: int) -> None:
        self.rows: dict[RowKey, DeviceMemory] = {}
        self._counter = counter
        self._allocator = allocator_model(capacity_bytes, os.environ)
        self._sizes: dict[int, int] = {}

    def start(self) -> None:
        """Let peaks begin anew."""
        self._replay()
        self._allocator.reset_peaks()

    def note(self, step: StepKind, phase: Phase, peak_occupied_bytes: int | None = None) -> None:  # noqa: ARG002 -- as promised
        """Bring the model up to date and keep its figures."""
        self._replay()
        allocator = self._allocator
        self.keep(
            DeviceMemory(
                step=step,
                phase=phase,
                allocated_bytes=allocator.allocated_bytes,
                peak_allocated_bytes=allocator.peak_allocated_bytes,
                reserved_bytes=allocator.reserved_bytes,
                peak_reserved_bytes=allocator.peak_reserved_bytes,
                alloc_retries=allocator.alloc_retries,
                nvml_used_bytes=None,
                nvml_process_bytes=None,
                peak_occupied_bytes=allocator.peak_occupied_bytes,
            )
        )

    def totals(self) -> AllocatorTotals:
        """Of the phase under way, until now."""
        self._replay()
        allocator = self._allocator
        return AllocatorTotals(
            live_bytes=allocator.allocated_bytes,
            peak_bytes=allocator.peak_allocated_bytes,
            live_rounding_bytes=allocator.allocated_bytes - allocator.requested_bytes,
            peak_rounding_bytes=allocator.peak_allocated_bytes - allocator.peak_requested_bytes,
        )

    def empty_cache(self) -> None:
        """Free segments go back."""
        self._replay()
        self._allocator.empty_cache()

    def _replay(self) -> None:
        """A storage that changes its size is given back and asked for anew, as `resize_` does."""
        sizes, allocator = self._sizes, self._allocator
        for entry, delta, stream in self._counter.take_device_events():
            old = sizes.pop(entry.serial, 0)
            if old:
                allocator.free(entry.serial)
            if old + delta:
                sizes[entry.serial] = old + delta
                self._malloc(entry.serial, old + delta, stream)

    def _malloc(self, key: int, nbytes: int, stream: int) -> None:
        """Beyond the GPU's capacity the figures go on, since how much is missing is what a plan asks."""
        try:
            self._allocator.malloc(key, nbytes, stream)
        except OutOfMemory:
            self._allocator.capacity_bytes = None
            self._allocator.malloc(key, nbytes, stream)
