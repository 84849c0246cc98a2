"""Trials that offload states or load their weights: bytes of host memory for each parameter, by who holds them."""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.report.column_units import MISSING, byte_unit
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.host_parameters import PAGE_CACHE, Holder
from zerobench.report.tables.model import Column, Table, lines_of

TITLE = "Host memory per parameter"
_ABOUT_FILES = "; page cache is shared by the ranks of a node and not in the sum"


def host_parameters_table(trials: Sequence[TrialFigures]) -> Table[Holder]:
    """The holders of each trial that has such."""
    lines = lines_of(trials, lambda trial: trial.holders)
    unit = byte_unit(line.figures.node_bytes for line in lines if line.figures.node_bytes is not None)
    return Table(
        TITLE,
        (
            "Bytes per model parameter, summed over all ranks: peak of start-up (load), end of start-up "
            "(init), peak of a steady step. node: all ranks of a node. Without interpreter and libraries"
            f"{_ABOUT_FILES if any(line.figures.name == PAGE_CACHE for line in lines) else ''}."
        ),
        [
            Column[Holder]("held by", lambda holder: holder.name, narrow="held by", is_text=True),
            Column[Holder]("load", lambda holder: _figure(holder.load_peak), "B", "load", "load"),
            Column[Holder]("init", lambda holder: _figure(holder.load_end), "B", "init", "init"),
            Column[Holder]("steady", lambda holder: _figure(holder.steady), "B", "steady", "steady"),
            Column[Holder](
                "rank",
                lambda holder: unit.show(holder.rank_bytes),
                unit.name,
                f"rank, {unit.name}",
                f"rank, {unit.name}",
            ),
            Column[Holder](
                "node",
                lambda holder: unit.show(holder.node_bytes),
                unit.name,
                f"node, {unit.name}",
                f"node, {unit.name}",
            ),
        ],
        lines,
        heading="Host memory in bytes per model parameter, by holder",
    )


def _figure(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"
