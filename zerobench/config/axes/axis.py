"""One axis of a sweep, as a row with everything that other modules need.

A row holds the reader of a value, its default, its age, its form in trial names, table columns and chart lines, its
help, and what it changes. The rows are in `work_axes.py` and `engine_axes.py`; `axes.py` derives the rest from them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from zerobench.config.trial.trial import Later, TrialSpec

Reader = Callable[[str, Any], list[Any]]
"""Maps an axis name and one value as written to the values it denotes."""

ColumnKind = type[str] | type[int] | type[bool]


@dataclass(frozen=True)
class Column:
    """A column with an axis's value; every name is public."""

    name: str
    kind: ColumnKind
    value: Callable[[TrialSpec], Any] | None = None
    """None: read from the trial's result, not from its spec (zerobench.report.export)."""
    line: Callable[[Any], str] | None = None
    """Formats the value in the name of a chart's line; None: not shown there."""
    silent: Any = None
    """Value, besides None, that a line's name leaves out."""
    is_key: bool = True
    """True if it is among the first columns of every tidy table; else only the page's own tables have it."""
    since: int | None = None
    """Its place among the later columns, if it was introduced after its axis (zerobench.config.trial.trial.Later)."""


@dataclass(frozen=True)
class Label:
    """Text of a value in a trial's name and in a sentence; "" is left out."""

    short: Callable[[TrialSpec], str]
    sentence: Callable[[TrialSpec], str]
    legend: str = ""
    """Meaning of the letters in the short form."""
    always: bool = False
    """True if the usual value is in the name as well."""
    unmarked: str | None = None
    """Value that names omit where trials differ, even if it is not the usual one."""
    in_sentences: bool = True
    """Whether a value that all trials share is part of the sentence about them."""


class Visibility(Enum):
    """Source of an axis's value when the trial is a user's own script (zerobench.launch.tracking.own_trial)."""

    ALWAYS = "its default is right, or the engine says it"
    BY_ENGINE = "known where the script's engine or model tells"
    NEVER = "nobody tells"


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep, or (without a reader) a part of a trial that a sweep sets elsewhere."""

    name: str
    read: Reader | None = None
    """Reads one value as written; None: set in a section of the sweep file."""
    example: str | None = None
    """Value in the example of a sweep file; None: covered by another axis's help."""
    help: str = ""
    """Meaning and choices, for users."""
    columns: tuple[Column, ...] = ()
    label: Label | None = None
    said_by: str = ""
    """Where its value is shown if the row has no column or label: another axis, or the reason for none."""
    usual: Any = None
    """Default of an axis that is no field of a trial; fields have their own."""
    sets_up_engine: bool = False
    """Whether it sets up one engine without changing the work or the placement of states: it is dropped for every other
    strategy, so that one sweep may set up several engines. Axes that do change them (offload, compression) are refused
    where a strategy does not support them."""
    changes_speed: bool = False
    """Whether it does equal work in another way, with an equally good loss: seconds are compared only between trials
    that agree in it (zerobench.report.figures.strategies.rows). TrialSpec.parity_hash has what losses depend on."""
    is_layout: bool = False
    """Whether it is one of those that set the number of ranks and their nodes."""
    is_evidence: bool = False
    """Whether it sets how a trial's figures are obtained, not its work."""
    visibility: Visibility = Visibility.ALWAYS

    @property
    def default(self) -> Any:
        """Value if a sweep does not name the axis; None if there is none."""
        field = TrialSpec.model_fields.get(self.name)
        if self.usual is not None or field is None or field.is_required():
            return self.usual
        return field.get_default(call_default_factory=True)

    @property
    def since(self) -> int:
        """Its place among the axes introduced after the first kept runs; 0 for the original ones."""
        field = TrialSpec.model_fields.get(self.name)
        marks = [] if field is None else [mark.place for mark in field.metadata if isinstance(mark, Later)]
        return marks[0] if marks else 0
