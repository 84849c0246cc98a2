"""What a rank needs and whether that fits, derived from its account and its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zerobench.emulate.part import Account, End
from zerobench.records import Category, MemoryRow, Phase, Place, RankRecord, StepKind


@dataclass(frozen=True)
class Peak:
    """The most that tensors held in one place, and what for."""

    step: StepKind
    phase: Phase
    total_bytes: int
    categories: dict[Category, int]
    """Those that held something, largest first."""


@dataclass(frozen=True)
class RankFit:
    """One rank's figures; None is not known."""

    account: Account
    memory_bytes: int
    """Of its GPU."""
    needed: Account | None
    """Of the same on a GPU of boundless memory, where it did not fit."""
    peak: Peak | None
    start: Peak | None
    host: Peak | None

    @property
    def fits(self) -> bool | None:
        """Whether it ran within its GPU's memory; None where it failed for another reason, or never used a GPU."""
        if self.account.end is End.OUT_OF_DEVICE_MEMORY:
            return False
        return True if self.account.end is not End.FAILED and self.account.touched_device else None

    @property
    def needed_bytes(self) -> int | None:
        """What the driver would show as used: torch's reserved memory, the context, NCCL."""
        source = self.account if self.needed is None else self.needed
        whole = source.end in (End.STOPPED, End.FINISHED)
        if not whole or source.reserved_bytes is None:
            return None
        return source.reserved_bytes + (source.outside_bytes or 0)


def rank_fit(account: Account, record: RankRecord | None, memory_bytes: int, needed: Account | None) -> RankFit:
    """The figures of one rank; `record` is the ledger's, where there is one."""
    rows = [] if record is None else record.memory
    steps = [row for row in rows if row.phase is not Phase.INIT]
    return RankFit(
        account=account,
        memory_bytes=memory_bytes,
        needed=needed,
        peak=_peak(steps, Place.DEVICE),
        start=_peak([row for row in rows if row.phase is Phase.INIT], Place.DEVICE),
        host=_peak(rows, Place.HOST),
    )


def _peak(rows: Sequence[MemoryRow], place: Place) -> Peak | None:
    """The phase in which most was held, and by what."""
    here = [row for row in rows if row.place is place and row.at_peak_bytes is not None]
    totals = [row for row in here if row.category is Category.TOTAL]
    if not totals:
        return None
    top = max(totals, key=lambda row: row.at_peak_bytes or 0)
    parts: dict[Category, int] = {
        row.category: row.at_peak_bytes or 0
        for row in here
        if (row.step, row.phase) == (top.step, top.phase) and row.category is not Category.TOTAL and row.at_peak_bytes
    }
    largest = dict(sorted(parts.items(), key=lambda item: -item[1]))
    return Peak(top.step, top.phase, top.at_peak_bytes or 0, largest)


@dataclass(frozen=True)
class Try:
    """A change of the command that was played."""

    changes: tuple[str, ...]
    account: Account

    @property
    def fits(self) -> bool:
        """Whether it ran to its end."""
        return self.account.end in (End.STOPPED, End.FINISHED)

    @property
    def needed_bytes(self) -> int | None:
        """As RankFit's."""
        reserved = self.account.reserved_bytes
        return None if not self.fits or reserved is None else reserved + (self.account.outside_bytes or 0)


@dataclass(frozen=True)
class Verdict:
    """All ranks that were played."""

    ranks: tuple[RankFit, ...]
    ranks_per_node: int
    host_memory_bytes: int | None
    tries: tuple[Try, ...] = ()
    not_tried: str | None = None
    """Why no change was tried, where none could be."""
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> Account | None:
        """The first rank whose script failed by itself."""
        return next((one.account for one in self.ranks if one.account.end is End.FAILED), None)

    @property
    def host_node_bytes(self) -> int | None:
        """What tensors hold in the memory of one node, its ranks taken to be as the largest of those played."""
        peaks = [one.host.total_bytes for one in self.ranks if one.host is not None]
        return max(peaks) * self.ranks_per_node if peaks and self.fits_devices else None

    @property
    def fits_devices(self) -> bool | None:
        """Whether every rank that was played fits its GPU."""
        known = [one.fits for one in self.ranks]
        return False if False in known else (None if None in known else True)

    @property
    def fits_host(self) -> bool | None:
        """Whether a node's memory is enough for what its ranks' tensors hold there; None: not known or not asked."""
        if self.host_memory_bytes is None or self.host_node_bytes is None:
            return None
        return self.host_node_bytes <= self.host_memory_bytes

    @property
    def fits(self) -> bool | None:
        """Devices and host."""
        return False if self.fits_host is False else self.fits_devices
