"""Trials whose memory was refused: what stood on the device at that instant."""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.report.figures.standing import HeldShare
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, figures_of, lines_of, unit_column
from zerobench.report.words.column_units import byte_unit, show_percent

TITLE = "Memory held at the failed allocation"
HOW_TO_READ = (
    "Rank with the failed allocation: torch's allocations by category, holder, module class and allocating function; "
    "the six largest of each, from 1% on. Free: reserved by torch and not given out; fragmentation, where its pieces "
    "are small. Host: its tensors, and the rest of the process as the kernel counts it; where the kernel killed the "
    "rank, the last account before. A prediction is listed where a node needs more than it has."
)


def standing_table(trials: Sequence[TrialFigures]) -> Table[HeldShare]:
    """The largest of what each trial held."""
    lines = lines_of(trials, lambda trial: trial.standing)
    unit = byte_unit(row.size_bytes for row in figures_of(lines))
    columns: list[Column[HeldShare]] = [
        Column("by", lambda row: row.by, narrow="by", is_text=True),
        Column("of", lambda row: row.name, narrow="of", is_text=True),
        unit_column("held", unit, lambda row: row.size_bytes, narrow=unit.name),
        Column("share", lambda row: show_percent(row.share), "%", narrow="%"),
    ]
    return Table(TITLE, HOW_TO_READ, columns, lines)
