"""The count of storages, fed from the simulation itself: one Python mode for each operation and not two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch

from zerobench.common.malloc import MAPPED_FROM_BYTES
from zerobench.estimate.time.trace import PageMapping, tell
from zerobench.rank.ledger.storages import Storage, StorageCounter
from zerobench.rank.worlds.simulation.device import DEVICE
from zerobench.rank.worlds.simulation.streams import current_number
from zerobench.rank.worlds.simulation.tensors import SimulatedTensors

DeviceEvent = tuple[Storage, int, int]
"""A storage of the device, by how many bytes it grew, and the number of the stream that was current."""


class SimulatedCounter(StorageCounter):
    """A StorageCounter that is no mode of its own, and keeps what happened on the device for the allocator's model."""

    _counts_fakes = True

    def __init__(self, observe: Callable[[], object], tensors: SimulatedTensors) -> None:
        super().__init__(observe)
        self._tensors = tensors
        self._device_events: list[DeviceEvent] = []
        self._touched_bytes: dict[int, int] = {}
        """Of storages that malloc maps, by serial number: up to where they have been written."""

    def __enter__(self) -> Self:
        self._tensors.observer = self.see
        self.watch_resizes()
        return self

    def __exit__(self, *_: object) -> None:
        self._tensors.observer = None
        self.leave_resizes()

    def take_device_events(self) -> list[DeviceEvent]:
        """What happened on the device since the last time this was asked."""
        events, self._device_events = self._device_events, []
        return events

    def wrote(self, out: object) -> None:
        """An operation of a processor has written its result: pages that are new are made ready as they are written."""
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
