"""What a rank needs and whether that fits, derived from its account and its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.part import Account, End
from zerobench.records.records import DeviceMemory, HostStanding, MemoryRow, RankRecord


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
    needed_bytes: int | None
    """As `needed_bytes`, of that."""
    needs: Mapping[StepKind, int]
    """Of `needed_bytes`, what start-up and steps need each, as far as the ledger watched; empty without one."""
    reserved: Mapping[StepKind, int]
    """The most that its allocator had reserved at start-up, and in steps; of what ran on its own GPU."""
    peak: Peak | None
    start: Peak | None
    host: Peak | None
    """Of the same, where it did not fit and was played so."""
    host_standing: HostStanding | None
    """What that was, by module and allocation site too."""
    nvme_bytes: int
    """The most that its swap files held; of the same."""

    @property
    def fits(self) -> bool | None:
        """Whether it ran within its GPU's memory; None where it failed for another reason, or never used a GPU."""
        if self.account.end is End.OUT_OF_DEVICE_MEMORY:
            return False
        return True if self.account.end is not End.FAILED and self.account.touched_device else None

    @property
    def nvml_bytes(self) -> int | None:
        """What the driver would show as used: all that torch reserved, the context, NCCL."""
        reserved = self.account.reserved_bytes
        return None if reserved is None else reserved + (self.account.outside_bytes or 0)

    @property
    def is_known_whole(self) -> bool:
        """Whether it was seen to its end, if need be on a GPU of boundless memory."""
        return _is_whole(self.account if self.needed is None else self.needed)


def _is_whole(account: Account) -> bool:
    return account.end in (End.STOPPED, End.FINISHED)


def needed_bytes(account: Account, record: RankRecord | None) -> int | None:
    """What a GPU must have for it: the allocator's segments in which anything lay when they were most, the context,
    NCCL. None where it was not seen to its end.
    """
    if not _is_whole(account) or account.reserved_bytes is None:
        return None
    phases = [] if record is None else [row.held_bytes for row in record.device_memory]
    held = account.occupied_bytes
    if held is None:
        # Between its phases the ledger counts nothing, the allocator does.
        held = max([*phases, account.peak_bytes or 0]) if phases else account.reserved_bytes
    return held + (account.outside_bytes or 0)


def _largest_by_step(
    record: RankRecord | None, size: Callable[[DeviceMemory], int], more_bytes: int = 0
) -> dict[StepKind, int]:
    """The largest `size` of the allocator's rows at start-up, and in steps, and `more_bytes`."""
    rows = [] if record is None else record.device_memory
    kinds = [step for step in StepKind if any(row.step is step for row in rows)]
    return {step: more_bytes + max(size(row) for row in rows if row.step is step) for step in kinds}


def rank_fit(
    account: Account,
    record: RankRecord | None,
    memory_bytes: int,
    needed: Account | None,
    needed_record: RankRecord | None = None,
) -> RankFit:
    """The figures of one rank; the records are the ledger's, where there are any."""
    rows = [] if record is None else record.memory
    steps = [row for row in rows if row.phase is not Phase.INIT]
    whole = rows if needed_record is None else needed_record.memory
    seen, seen_record = (account, record) if needed is None else (needed, needed_record)
    swapped = [row for row in whole if row.place is Place.NVME]
    return RankFit(
        account=account,
        memory_bytes=memory_bytes,
        needed=needed,
        needed_bytes=needed_bytes(seen, seen_record),
        needs=_largest_by_step(seen_record, lambda row: row.held_bytes, seen.outside_bytes or 0),
        reserved=_largest_by_step(record, lambda row: row.peak_reserved_bytes),
        peak=_peak(steps, Place.DEVICE),
        start=_peak([row for row in rows if row.phase is Phase.INIT], Place.DEVICE),
        host=_peak(whole, Place.HOST),
        host_standing=None if (of_whole := needed_record or record) is None else of_whole.host_peak,
        nvme_bytes=max((row.live_bytes or 0 for row in swapped if row.category is Category.TOTAL), default=0),
    )


def host_bytes(record: RankRecord | None) -> int | None:
    """The most that one rank's tensors held in its node's memory; None where nobody watched."""
    peak = None if record is None else _peak(record.memory, Place.HOST)
    return None if peak is None else peak.total_bytes


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
    needed_bytes: int | None = None
    """Of its GPU, as `needed_bytes`; None where it does not fit."""
    host_node_bytes: int | None = None
    """What tensors hold in a node's memory, each of its ranks taken to be as this one; None: not known."""
    host_memory_bytes: int | None = None
    """What a node has; None: not asked."""
    drafts: tuple[Draft, Draft] | None = None
    """The command as it was given, and as it was played."""
    record: RankRecord | None = None
    """The ledger's, with the order of its step; None where it was played compiled, or failed."""

    @property
    def fits_device(self) -> bool:
        """Whether it ran to its end."""
        return _is_whole(self.account)

    @property
    def fits_host(self) -> bool | None:
        """Whether a node's memory is enough; None: not known, or not asked."""
        if self.host_node_bytes is None or self.host_memory_bytes is None:
            return None
        return self.host_node_bytes <= self.host_memory_bytes

    @property
    def fits(self) -> bool:
        """Both, as far as they are asked."""
        return self.fits_device and self.fits_host is not False


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
        return next((rank.account for rank in self.ranks if rank.account.end is End.FAILED), None)

    @property
    def whole_nodes(self) -> list[list[RankFit]]:
        """The nodes all of whose ranks were played."""
        nodes: dict[int, list[RankFit]] = {}
        for rank in self.ranks:
            nodes.setdefault(rank.account.rank // self.ranks_per_node, []).append(rank)
        return [ranks for ranks in nodes.values() if len(ranks) == self.ranks_per_node]

    @property
    def host_node_bytes(self) -> int | None:
        """What tensors hold in the memory of one node: added up over its ranks where all of them were played, else each
        taken to be as the largest of those that were.
        """
        peaks = [rank.host.total_bytes for rank in self.ranks if rank.host is not None and rank.is_known_whole]
        if not peaks or len(peaks) < len(self.ranks):
            return None
        sums = [sum(rank.host.total_bytes for rank in node if rank.host is not None) for node in self.whole_nodes]
        are_all = len(self.whole_nodes) * self.ranks_per_node == len(self.ranks)
        return max(sums) if sums and are_all else max(peaks) * self.ranks_per_node

    @property
    def host_standing(self) -> HostStanding | None:
        """What the rank held of the host that held most of it."""
        known = [rank.host_standing for rank in self.ranks if rank.host_standing is not None]
        return max(known, key=lambda standing: standing.total_bytes, default=None)

    @property
    def host_basis(self) -> str:
        """How that was obtained, in words."""
        whole = self.whole_nodes
        if whole and len(whole) * self.ranks_per_node == len(self.ranks):
            return f"sum of its {self.ranks_per_node} ranks" if self.ranks_per_node > 1 else "its one rank"
        which = "the emulated rank" if len(self.ranks) == 1 else "the largest emulated rank"
        return f"{which}, times {self.ranks_per_node}"

    @property
    def host_over_bytes(self) -> int | None:
        """By how much a node's memory is exceeded; below zero: what is left of it."""
        if self.host_memory_bytes is None or self.host_node_bytes is None:
            return None
        return self.host_node_bytes - self.host_memory_bytes

    @property
    def fits_devices(self) -> bool | None:
        """Whether every rank that was played fits its GPU."""
        known = [rank.fits for rank in self.ranks]
        return False if False in known else (None if None in known else True)

    @property
    def fits_host(self) -> bool | None:
        """Whether a node's memory is enough for what its ranks' tensors hold there; None: not known or not asked."""
        return None if self.host_over_bytes is None else self.host_over_bytes <= 0

    @property
    def fits(self) -> bool | None:
        """Devices and host."""
        return False if self.fits_host is False else self.fits_devices

    @property
    def causes(self) -> list[Place]:
        """Whose memory is too small."""
        judged = ((Place.DEVICE, self.fits_devices), (Place.HOST, self.fits_host))
        return [place for place, fits in judged if fits is False]
