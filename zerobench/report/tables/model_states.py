"""Model states of one rank beside the ZeRO paper's terms, and their three columns, which other tables have too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from zerobench.config.derived.roles import Role
from zerobench.config.derived.zero_paper import ModelStates as Terms
from zerobench.records.instants import ModelStates
from zerobench.report.figures.paper import PaperTerms, paper_terms
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, figures_of, lines_of, of_part, unit_column
from zerobench.report.words.column_units import MISSING, Unit, byte_unit, show_percent

T = TypeVar("T")

TITLE = "Model states beside the ZeRO paper"


@dataclass(frozen=True)
class StatesRow:
    """Measured states, and the paper's where it speaks of the strategy."""

    states: ModelStates
    paper: PaperTerms | None

    @property
    def excess_bytes(self) -> float | None:
        """By how much they are more than the paper's."""
        return None if self.paper is None else self.states.total_bytes - self.paper.total_bytes

    @property
    def excess_fraction(self) -> float | None:
        """That over the paper's."""
        if self.paper is None or self.paper.total_bytes == 0:
            return None
        return self.states.total_bytes / self.paper.total_bytes - 1


def states_table(trials: Sequence[TrialFigures]) -> Table[StatesRow]:
    """A row for each completed trial that measured them, two for one with a server."""
    lines = lines_of(trials, states_rows)
    rows = figures_of(lines)
    unit = byte_unit(row.states.total_bytes for row in rows)
    has_server = any(row.states.role == Role.SERVER for row in rows)
    excess = byte_unit(row.excess_bytes for row in rows)

    def both(name: str, narrow: str, value: Callable[[ModelStates | Terms], float]) -> list[Column[StatesRow]]:
        """Measured, and by the paper."""
        paper: Callable[[StatesRow], str] = of_part(lambda row: row.paper, lambda terms: unit.show(value(terms)))
        return [
            Column(name, lambda row: unit.show(value(row.states)), unit.name, name, narrow),
            Column(f"{name} by the paper", paper, unit.name, "paper", "paper"),
        ]

    columns: list[Column[StatesRow]] = [
        Column("rank", lambda row: row.states.rank_text, narrow="rank" if has_server else None),
        *both("parameters", "param", lambda states: states.parameters_bytes),
        *both("gradients", "grad", lambda states: states.gradients_bytes),
        *both("optimizer", "optim", lambda states: states.optimizer_bytes),
        *both("total", "total", lambda states: states.total_bytes),
        unit_column("diff", excess, lambda row: row.excess_bytes, f"diff {excess.name}"),
        Column("diff", lambda row: show_percent(row.excess_fraction, 2, signed=True), narrow="diff"),
        Column("terms", lambda row: row.paper.text if row.paper else MISSING, is_text=True),
    ]
    return Table(
        TITLE,
        (
            "Largest rank, device and host together; gradients at the end of backward (stage 1 has "
            "then freed all but its partition's), the rest after the step. paper: arXiv 1910.02054, "
            "section 5, without padding; P: number of parameters."
        )
        + (" Servers: separate rows." if has_server else ""),
        columns,
        lines,
        heading=f"Model states of one rank beside the ZeRO paper, {unit.name}",
    )


def states_rows(trial: TrialFigures) -> Iterator[StatesRow]:
    """The largest rank of each role of a whole trial that measured them."""
    terms = paper_terms(trial.spec, trial.num_params)
    for role in trial.roles if trial.is_whole else ():
        held = [rank.states for rank in trial.ranks if rank.states is not None and rank.role == role]
        if held:
            yield StatesRow(max(held, key=lambda states: (states.total_bytes, -states.rank)), terms)


def states_columns(unit: Unit, states: Callable[[T], ModelStates | None]) -> list[Column[T]]:
    """Parameters, gradients and optimizer states in `unit`; a terminal of 80 columns has no room for them."""
    return [
        Column("parameters", of_part(states, lambda held: unit.show(held.parameters_bytes)), unit.name, "param"),
        Column("gradients", of_part(states, lambda held: unit.show(held.gradients_bytes)), unit.name, "grad"),
        Column("optimizer", of_part(states, lambda held: unit.show(held.optimizer_bytes)), unit.name, "optim"),
    ]
