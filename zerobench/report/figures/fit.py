"""Fit of a trial: its needs of a GPU and of a node against the memory there is.

What must fit is measured by zerobench.report.figures.capacity. Plans, tables of runs and headlines all judge by this.
"""

from __future__ import annotations

from dataclasses import dataclass

ROOM = 0.05
"""The share of a memory that a recommended configuration leaves free: predictions err, and memory fragments."""


@dataclass(frozen=True, slots=True)
class Space:
    """One kind of memory: bytes needed and available; None where not known or not given."""

    needed_bytes: int | None
    capacity_bytes: int | None
    was_refused: bool = False
    """True if an allocator gave up within this capacity, be it for gaps alone."""

    @property
    def room(self) -> float | None:
        """The free share, below zero where the trial does not fit; None where not judged."""
        if self.needed_bytes is None or not self.capacity_bytes:
            return None
        room = 1 - self.needed_bytes / self.capacity_bytes
        return min(room, 0.0) if self.was_refused else room

    @property
    def fits(self) -> bool:
        """True if it fits, as far as is known."""
        return not self.was_refused and (self.room is None or self.room >= 0)

    @property
    def has_room(self) -> bool:
        """True if it fits with room to spare, as far as is known."""
        return self.room is None or self.room >= ROOM


@dataclass(frozen=True, slots=True)
class Fit:
    """A trial's need of one GPU and of one node."""

    device: Space
    host: Space
    needs_host: bool
    """True if host memory or a drive holds states that a GPU would."""

    @property
    def is_known(self) -> bool:
        """True if the need and the capacity of the device are known."""
        return self.device.room is not None

    @property
    def fits(self) -> bool:
        """True if device and host hold it, as far as the host's memory is known."""
        return self.is_known and self.device.fits and self.host.fits

    @property
    def has_room(self) -> bool:
        """True if device and host hold it with room to spare, as far as the host's memory is known."""
        return self.room >= ROOM

    @property
    def room(self) -> float:
        """The free share of the scarcer of device and host memory; -1 if not known of the device."""
        if self.device.room is None:
            return -1.0
        return self.device.room if self.host.room is None else min(self.device.room, self.host.room)

    @property
    def host_unchecked(self) -> bool:
        """True if it needs host memory and nobody said how much there is."""
        return self.needs_host and self.host.room is None

    @property
    def verdict(self) -> str:
        """`yes`, `tight`, or which memory is too small; empty where nothing is known of the device, `not checked` where
        the device holds it and the memory of the host, which it needs, is not known.
        """
        if self.device.room is None:
            return ""
        lacking = [name for name, space in (("device", self.device), ("host", self.host)) if not space.fits]
        if lacking:
            return "no" if len(lacking) == 2 else f"no: {lacking[0]}"
        if self.host_unchecked:
            return "not checked"
        return "yes" if self.device.has_room and self.host.has_room else "tight"
