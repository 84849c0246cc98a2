"""What tests ask of a rank's record: its ledger, what it moves and computes, its losses."""

import math
from collections.abc import Sequence

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.records.records import MemoryRow, RankRecord

FEW_BYTES = 4096


def live_bytes(
    rank: RankRecord,
    category: Category,
    phase: Phase,
    step: StepKind = StepKind.STEADY,
    places: Sequence[Place] = tuple(Place),
) -> int:
    """Bytes of the category at the end of a phase, wherever they lie; 0 where it has no row."""
    rows = [row for row in rank.memory if (row.category, row.phase, row.step) == (category, phase, step)]
    return sum(row.live_bytes for row in rows if row.place in places)


def start_up_bytes(rank: RankRecord, category: Category, place: Place = Place.DEVICE) -> int:
    """The category's largest bytes while the engine is built."""
    rows = [row for row in rank.memory if (row.step, row.phase) == (StepKind.FIRST, Phase.INIT)]
    return sum(row.own_peak_bytes or 0 for row in rows if (row.place, row.category) == (place, category))


def total(rank: RankRecord, row: MemoryRow) -> MemoryRow:
    """The row of everything that lay in the same place in the same phase."""
    key = (row.step, row.phase, row.place, Category.TOTAL)
    return next(other for other in rank.memory if (other.step, other.phase, other.place, other.category) == key)


def unnamed(rank: RankRecord, *, share: float = 0.01, few_bytes: int = FEW_BYTES) -> list[MemoryRow]:
    """The rows of what had no name at its peak, where that is more than `share` of the peak and more than few bytes."""
    return [
        row
        for row in rank.memory
        if row.category is Category.UNATTRIBUTED
        and abs(row.at_peak_bytes or 0) > max(share * (total(rank, row).at_peak_bytes or 0), few_bytes)
    ]


def moved_bytes(rank: RankRecord, *kinds: str) -> int:
    """Of the messages of these kinds in a steady step."""
    return sum(row.message_bytes for row in rank.collectives if row.step is StepKind.STEADY and row.kind in kinds)


def flops_by_phase(rank: RankRecord) -> dict[Phase, float]:
    """Of a steady step."""
    return {row.phase: row.flops for row in rank.flops if row.step is StepKind.STEADY}


def apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest difference of the losses of two trainings; no number where one of them is none."""
    found = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return math.nan if any(map(math.isnan, found)) else max(found)
