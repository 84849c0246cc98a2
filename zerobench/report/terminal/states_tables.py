"""Terminal tables of model states beside the ZeRO paper's terms, and of the models' parameters by component."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zerobench.report.column_units import MISSING, Unit, byte_unit, plain, show_percent
from zerobench.report.memory_view import ModelStates, largest_model_states
from zerobench.report.paper import PaperTerms, paper_terms
from zerobench.report.terminal.layout import Column, Section, Shown, table
from zerobench.report.trials import completed, num_params, parameter_counts, roles
from zerobench.spec.roles import Role
from zerobench.units import format_count


@dataclass(frozen=True)
class _Row:
    """Measured states, and the paper's where it speaks of the strategy."""

    states: ModelStates
    paper: PaperTerms | None

    @property
    def excess_bytes(self) -> float | None:
        return None if self.paper is None else self.states.total_bytes - self.paper.total_bytes

    @property
    def excess_fraction(self) -> float | None:
        if self.paper is None or self.paper.total_bytes == 0:
            return None
        return self.states.total_bytes / self.paper.total_bytes - 1


def states_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """Model states beside the paper's terms, for the trials that measured them."""
    ran = [one for one in shown if completed(one.trial)]
    rows = [(one, row) for one in ran for role in roles(one.trial) if (row := _row(one, role)) is not None]
    if rows:
        yield _states(rows, width)


def _row(shown: Shown, role: str) -> _Row | None:
    states = largest_model_states(shown.trial, role)
    terms = paper_terms(shown.trial.spec, num_params(shown.trial))
    return None if states is None else _Row(states, terms)


def _measured(unit: Unit, name: str) -> Callable[[_Row], str]:
    return lambda row: unit.show(getattr(row.states, name))


def _by_paper(unit: Unit, name: str) -> Callable[[_Row], str]:
    return lambda row: MISSING if row.paper is None else unit.show(getattr(row.paper, name))


def _states(rows: list[tuple[Shown, _Row]], width: int) -> Section:
    unit = byte_unit(row.states.total_bytes for _, row in rows)
    has_server = any(row.states.role == Role.SERVER for _, row in rows)
    excess = byte_unit(row.excess_bytes for _, row in rows)
    columns = [
        Column[_Row]("rank", "rank" if has_server else None, lambda row: row.states.rank_text),
        Column("parameters", "param", _measured(unit, "parameters_bytes")),
        Column("paper", "paper", _by_paper(unit, "parameters_bytes")),
        Column("gradients", "grad", _measured(unit, "gradients_bytes")),
        Column("paper", "paper", _by_paper(unit, "gradients_bytes")),
        Column("optimizer", "optim", _measured(unit, "optimizer_bytes")),
        Column("paper", "paper", _by_paper(unit, "optimizer_bytes")),
        Column("total", "total", _measured(unit, "total_bytes")),
        Column("paper", "paper", _by_paper(unit, "total_bytes")),
        Column[_Row](f"diff {excess.name}", None, lambda row: excess.show(row.excess_bytes)),
        Column[_Row]("diff", "diff", lambda row: show_percent(row.excess_fraction, 2, signed=True)),
        Column[_Row]("terms", None, lambda row: row.paper.text if row.paper else MISSING, is_text=True),
    ]
    return Section(
        f"Model states of one rank beside the ZeRO paper, {unit.name}",
        "The rank that holds most, device and host together; gradients at the end of backward, when stage 1 too has "
        "freed all but its partition's, the rest after the step. paper: arXiv 1910.02054, section 5, without padding; "
        "P is the number of parameters." + (" A server has a row of its own." if has_server else ""),
        table(columns, rows, width),
    )


def composition_lines(shown: Sequence[Shown]) -> list[str]:
    """One line for each model: its parameters, in all and by component."""
    models = {one.trial.spec.model.name: one for one in reversed(shown)}
    return [line for one in reversed(models.values()) if (line := _composition(one))]


def _composition(shown: Shown) -> str | None:
    counts, total = parameter_counts(shown.trial), num_params(shown.trial)
    if counts is None or total is None:
        return None
    parts = [
        f"{name.replace('_', ' ')} {format_count(count)}" for name, count in counts.by_component().items() if count
    ]
    return f"{plain(shown.trial.spec.model.name)}: {total:,} parameters ({', '.join(parts)})"
