"""All axes of a sweep, and what follows from their rows: readers, layout, defaults, settings, columns and help.

An axis is written as one value or as a list of values. `read_grid` returns lists of values of the right type, in
the order written.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.axes.axis import Axis, Column, Label, Reader, Visibility
from zerobench.config.axes.axis_readers import MAX_POINTS
from zerobench.config.axes.engine_axes import ENGINE_AXES
from zerobench.config.axes.work_axes import WORK_AXES
from zerobench.config.derived.strategy import STRATEGIES
from zerobench.config.trial.plain import one_line

ROWS: Mapping[str, Axis] = {row.name: row for row in (*WORK_AXES, *ENGINE_AXES)}
"""Everything that defines a trial, by name: the axes, and what other sections of a sweep file set."""

READERS: Mapping[str, Reader] = {name: row.read for name, row in ROWS.items() if row.read is not None}
"""Reader of each axis."""

AXES: Mapping[str, Axis] = {name: ROWS[name] for name in READERS}

LAYOUT = tuple(name for name, axis in AXES.items() if axis.is_layout)
"""Axes that together set the number of ranks and their nodes."""

EVIDENCE_AXES = tuple(name for name, axis in AXES.items() if axis.is_evidence)
"""Axes that set how a trial's figures are obtained, not its work."""

SETTINGS = tuple(name for name, axis in AXES.items() if axis.sets_up_engine)
"""Axes that set up one engine and change neither the work nor the placement of states."""

STRATEGY_AXES = tuple(name for name in AXES if any(name in info.axes for info in STRATEGIES.values()))
"""Axes that only some strategies have."""

SPEED = tuple(name for name, axis in AXES.items() if axis.changes_speed)
"""Axes in which trials of equal work must agree before their seconds are compared."""

DEFAULTS: dict[str, Any] = {
    name: axis.default for name, axis in AXES.items() if not axis.is_layout and name not in {"model", "strategy"}
}
"""Value of an axis that a sweep does not name; for the layout see zerobench.config.sweep.target."""

_ARRIVED = [
    (axis.since if column.since is None else column.since, column) for axis in AXES.values() for column in axis.columns
]

KEY_COLUMNS: tuple[Column, ...] = tuple(
    column for _, column in sorted(_ARRIVED, key=lambda arrival: arrival[0]) if column.is_key
)
"""Columns that identify a trial, in the order in which they were introduced."""

LINE_COLUMNS: tuple[Column, ...] = tuple(
    column for axis in AXES.values() for column in axis.columns if column.line is not None
)
"""Columns that may appear in the name of a chart's line."""

LABELS: Mapping[str, Label] = {name: row.label for name, row in ROWS.items() if row.label is not None}
"""Parts of a trial's name, in their order."""


def axes_known(visibility: Visibility) -> tuple[str, ...]:
    """Axes with this visibility in a user's own script."""
    return tuple(name for name, axis in AXES.items() if axis.visibility is visibility)


Grid = dict[str, list[Any]]
"""Axis to its values, in the order written."""


def read_grid(axes: Mapping[str, Any], where: str) -> Grid:
    """Read the values of each axis. Raises UserError, which begins with `where`."""
    grid = {axis: read_axis(axis, raw, where) for axis, raw in axes.items()}
    points = math.prod(len(values) for values in grid.values())
    if points > MAX_POINTS:
        raise UserError(f"{where}: the lists multiply to {points} points; at most {MAX_POINTS}")
    return grid


def replaced_by(names: Iterable[str]) -> set[str]:
    """Axes that `names` replace: themselves, and of the layout a world size replaces nodes and GPUs per node, each of
    which replaces only a world size.
    """
    named = set(names)
    layout = named & set(LAYOUT)
    return named | (set(LAYOUT) if "world_size" in layout else {"world_size"} if layout else set())


def replace_axes(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the axes of `above` over `below`, in place; new axes come last.

    Layout axes of `below` that those above replace (`replaced_by`) are dropped.
    """
    layout = {axis: raw for axis, raw in above.items() if axis in LAYOUT}
    replaced = replaced_by(above)
    out: dict[str, Any] = {}
    for axis, raw in below.items():
        if axis in replaced and axis in LAYOUT:
            out |= layout
        else:
            out[axis] = above.get(axis, raw)
    return out | dict(above)


def read_axis(axis: str, raw: object, where: str) -> list[Any]:
    """Read the values of one axis. Raises UserError, which begins with `where`."""
    if axis not in READERS:
        raise UserError(one_line(f"{where}: {unknown_choice('axis', axis, READERS, LISTED_BY)}"))
    written = raw if isinstance(raw, list) else [raw]
    if not written:
        raise UserError(f"{where}: {axis}: [] is empty; give one or more values, or drop the axis")
    try:
        return [value for entry in written for value in READERS[axis](axis, entry)]
    except UserError as error:
        raise UserError(one_line(f"{where}: {error}")) from None


LISTED_BY = "zerobench sweeps --axes"
"""Command that prints `help_lines`."""
_COMMENTS = 38


def help_lines(width: int = 119) -> list[str]:
    """Example of a sweep file's axes: name, value and choices of each, on one line or more."""
    return [line for axis in AXES.values() if axis.example is not None for line in _help_lines(axis, width)]


def _help_lines(axis: Axis, width: int) -> list[str]:
    head = f"      {axis.name}: {axis.example}"
    first, *rest = textwrap.wrap(axis.help, width - _COMMENTS, break_on_hyphens=False)
    start = (
        [f"{head:<{_COMMENTS - 2}}# {first}"]
        if len(head) < _COMMENTS - 3
        else [head, f"{'':<{_COMMENTS - 2}}# {first}"]
    )
    return [*start, *(f"{'':<{_COMMENTS - 2}}# {line}" for line in rest)]
