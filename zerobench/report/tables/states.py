"""The three columns of model states that several tables have."""

from collections.abc import Callable
from typing import TypeVar

from zerobench.report.column_units import Unit
from zerobench.report.memory_view import ModelStates
from zerobench.report.tables.model import Column, of_part

T = TypeVar("T")


def states_columns(unit: Unit, states: Callable[[T], ModelStates | None]) -> list[Column[T]]:
    """Parameters, gradients and optimizer states in `unit`; a terminal of 80 columns has no room for them."""
    return [
        Column("parameters", of_part(states, lambda held: unit.show(held.parameters_bytes)), unit.name, "param"),
        Column("gradients", of_part(states, lambda held: unit.show(held.gradients_bytes)), unit.name, "grad"),
        Column("optimizer", of_part(states, lambda held: unit.show(held.optimizer_bytes)), unit.name, "optim"),
    ]
