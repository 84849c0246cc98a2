"""The figures of a rank that predictions and measurements both have, each under a key that is equal on both sides.

What is not a figure of the work is taken out here: resident memory that no tensor holds (`rest_of_process`), which
is the interpreter and its libraries, and of which a simulated rank has none that means anything; and what kernels work
in on a CPU (`kernel_workspace`), which a simulation cannot look into: peaks are those of what tensors hold.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.records.records import DeviceMemory, MemoryRow, RankRecord


class Quantity(StrEnum):
    """Which figure of a phase it is."""

    LIVE = "live"
    """Bytes at the end of the phase."""
    PEAK = "peak"
    """Bytes at the instant of the phase's peak of the whole place."""
    RESERVED = "reserved"
    """CUDA, total only: the most that the caching allocator held of the device within the phase."""
    USED = "used"
    """CUDA, total only: what the driver says of this process at the phase's end, context and NCCL included."""


class Key(NamedTuple):
    """Which figure of one rank."""

    step: StepKind
    phase: Phase
    place: Place
    category: Category
    quantity: Quantity

    @property
    def position(self) -> tuple[int, ...]:
        """Sort key: the order of the records' enumerations, which is that of a run."""
        orders: tuple[list[StrEnum], ...] = (list(StepKind), list(Phase), list(Place), list(Category), list(Quantity))
        return tuple(order.index(part) for order, part in zip(orders, self, strict=True))


Figures = Mapping[Key, int]
"""Bytes by key."""


def figures(rank: RankRecord) -> Figures:
    """All figures of one rank that may be compared, in bytes: the ledger's, and what allocator and driver say."""
    sizes: dict[Key, int] = {}
    for row in rank.memory:
        sizes |= _of_row(row)
    for key in [key for key in sizes if key.category is Category.REST_OF_PROCESS]:
        rest = sizes.pop(key)
        total = key._replace(category=Category.TOTAL)
        if total in sizes:
            sizes[total] -= rest
    for held in rank.device_memory:
        sizes |= _of_allocator(rank, held)
    return sizes


def unforeseen_bytes(rank: RankRecord, place: Place) -> int:
    """The most that kernels and collectives worked in within a phase, which no prediction knows."""
    rows = (row for row in rank.memory if row.place is place and row.category is Category.KERNEL_WORKSPACE)
    return max((row.own_peak_bytes or 0 for row in rows), default=0)


def median(known: Sequence[Figures]) -> Figures:
    """The lower median of each figure over the repeats that have it: a figure that one of them left."""
    keys = dict.fromkeys(itertools.chain.from_iterable(known))
    return {key: statistics.median_low([sizes[key] for sizes in known if key in sizes]) for key in keys}


def looked_up(known: Figures, key: Key, *, fills: bool = True) -> int | None:
    """The figure; where `fills`, 0 for a category that a ledger which listed others did not list."""
    if key in known or key.category is Category.TOTAL or not fills:
        return known.get(key)
    others = (key._replace(category=other) for other in Category if other is not Category.TOTAL)
    return 0 if any(other in known for other in others) else None


def _of_row(row: MemoryRow) -> dict[Key, int]:
    """A row's figures; a total's own peak is the peak of its place."""
    live = Key(row.step, row.phase, row.place, row.category, Quantity.LIVE)
    peak = row.foreseeable_peak_bytes
    if peak is None and row.category is Category.TOTAL:
        peak = row.own_peak_bytes
    sizes = {live: row.live_bytes}
    return sizes if peak is None else sizes | {live._replace(quantity=Quantity.PEAK): peak}


def _of_allocator(rank: RankRecord, row: DeviceMemory) -> dict[Key, int]:
    reserved = Key(row.step, row.phase, Place.DEVICE, Category.TOTAL, Quantity.RESERVED)
    used = used_bytes(rank, row)
    sizes = {reserved: row.peak_reserved_bytes}
    return sizes if used is None else sizes | {reserved._replace(quantity=Quantity.USED): used}


def used_bytes(rank: RankRecord, row: DeviceMemory) -> int | None:
    """Device memory of the rank's process at the end of a phase, by the driver; else what is known to make it up.

    NVML's figure of the process, or of the device less what others had before; where there is no driver (a simulated
    device), reserved bytes plus CUDA context plus NCCL. None where neither is known.
    """
    if row.nvml_process_bytes is not None:
        return row.nvml_process_bytes
    context = rank.context
    if row.nvml_used_bytes is not None:
        before = None if context is None else context.before_bytes
        return None if before is None else row.nvml_used_bytes - before
    if context is None or context.context_bytes is None or context.collectives_bytes is None:
        return None
    return row.reserved_bytes + context.context_bytes + context.collectives_bytes
