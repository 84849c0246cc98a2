"""Trials that offload states or load their weights: bytes of host memory for each parameter, by who holds them."""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.report.figures.host_parameters import PAGE_CACHE, HeldBytes, Holder
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, lines_of
from zerobench.report.words.column_units import MISSING, Unit, byte_unit

TITLE = "Host memory per parameter"
_ABOUT_FILES = "; page cache is shared by the ranks of a node and not in the sum"


def host_parameters_table(trials: Sequence[TrialFigures]) -> Table[Holder]:
    """The holders of each trial that has such."""
    lines = lines_of(trials, lambda trial: trial.holders)
    held = [held for line in lines for held in (line.figures.load, line.figures.steady) if held is not None]
    unit = byte_unit(each.node_bytes for each in held)
    return Table(
        TITLE,
        (
            "Bytes per model parameter, summed over all ranks: peak of start-up (load), end of start-up "
            "(init), peak of a steady step. rank: the one that holds most; node: all ranks of a node. "
            "Without interpreter and libraries"
            f"{_ABOUT_FILES if any(line.figures.name == PAGE_CACHE for line in lines) else ''}."
        ),
        [
            Column("held by", lambda holder: holder.name, narrow="held by", is_text=True),
            Column("load", lambda holder: _figure(holder.load), "B", "load", "load"),
            Column("init", lambda holder: _figure(holder.init), "B", "init", "init"),
            Column("steady", lambda holder: _figure(holder.steady), "B", "steady", "steady"),
            *(_bytes("rank", "rank_bytes", moment, unit) for moment in _MOMENTS),
            *(_bytes("node", "node_bytes", moment, unit) for moment in _MOMENTS),
        ],
        lines,
        heading="Host memory in bytes per model parameter, by holder",
    )


_MOMENTS = ("load", "init", "steady")


def _bytes(who: str, field: str, moment: str, unit: Unit) -> Column[Holder]:
    """Column of one moment; 80 columns have room for a steady step's alone."""

    def cell(holder: Holder) -> str:
        held = getattr(holder, moment)
        return unit.show(None if held is None else getattr(held, field))

    short = f"{who}, {unit.name}" if moment == "steady" else None
    return Column(f"{who} {moment}", cell, unit.name, short or f"{who} {moment}", short)


def _figure(held: HeldBytes | None) -> str:
    return MISSING if held is None else f"{held.a_parameter:.2f}"
