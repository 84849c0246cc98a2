"""What tests ask of the ledger in a rank's record."""

from zerobench.records import Category, MemoryRow, Phase, RankRecord, StepKind

FEW_BYTES = 4096


def live_bytes(rank: RankRecord, category: Category, phase: Phase, step: StepKind = StepKind.STEADY) -> int:
    """Bytes of the category at the end of a phase, wherever they lie; 0 where it has no row."""
    key = (category, phase, step)
    return sum(row.live_bytes for row in rank.memory if (row.category, row.phase, row.step) == key)


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
