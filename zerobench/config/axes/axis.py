"""What an axis is: one row that says all that others need to know of it.

How a value is read, what it is by default, since when there is the axis, how it is written in the names of trials, in
the columns of tables and in the names of a chart's lines, what it is for people, and what it changes. The rows stand in
`work_axes.py` and `engine_axes.py`; `axes.py` derives of them what others ask for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from zerobench.config.trial.trial import Later, TrialSpec

Reader = Callable[[str, Any], list[Any]]
"""Axis name and one value as written, to the values it stands for."""

ColumnKind = type[str] | type[int] | type[bool]


@dataclass(frozen=True)
class Column:
    """A column that says an axis's value; every one is a public name."""

    name: str
    kind: ColumnKind
    value: Callable[[TrialSpec], Any] | None = None
    """None: it takes what the trial left, too (zerobench.report.export)."""
    line: Callable[[Any], str] | None = None
    """How the name of a chart's line writes a value; None: it does not."""
    silent: Any = None
    """The value that a line's name says nothing of, beside None."""
    is_key: bool = True
    """Whether it is among the first columns of every tidy table; else the page's own tables have it alone."""
    since: int | None = None
    """Its place among the later columns where it came after its axis (zerobench.config.trial.trial.Later)."""


@dataclass(frozen=True)
class Label:
    """How the name of a trial writes what it was asked for, and how a sentence does; "" says nothing."""

    short: Callable[[TrialSpec], str]
    sentence: Callable[[TrialSpec], str]
    legend: str = ""
    """What the letters in the short form mean."""
    always: bool = False
    """Whether a value that is usual is in the name all the same."""
    unmarked: str | None = None
    """The one value that names leave out where trials differ, whatever is usual."""
    in_sentences: bool = True
    """Whether what all trials share is said of it."""


class Visibility(Enum):
    """What is known of an axis where the trial is a user's own script (zerobench.launch.tracking.own_trial)."""

    ALWAYS = "its default is right, or the engine says it"
    BY_ENGINE = "known where the script's engine or model tells"
    NEVER = "nobody tells"


@dataclass(frozen=True)
class Axis:
    """One axis of a sweep, or (without a reader) a part of a trial that a sweep sets elsewhere."""

    name: str
    read: Reader | None = None
    """From one value as written; None: a section of the sweep file says it."""
    example: str | None = None
    """What the example of a sweep file writes; None: another axis's help says it."""
    help: str = ""
    """What it is and what it may be, for people."""
    columns: tuple[Column, ...] = ()
    label: Label | None = None
    said_by: str = ""
    """Who says its value in columns and labels where the row has none: another axis, or why nobody."""
    usual: Any = None
    """Its value where a sweep does not name it, for an axis that is no field of a trial; else the field's default."""
    sets_up_engine: bool = False
    """Whether it sets up one engine and changes neither the work nor where states lie: it is dropped for every other
    strategy, so that one sweep may set each engine up beside the others. What does change them (offload, compression)
    is refused where a strategy has no such thing."""
    changes_speed: bool = False
    """Whether equal work is done in another way, for as good a loss: seconds are compared only where trials agree in
    it (zerobench.report.figures.strategies.rows). What losses depend on is in TrialSpec.parity_hash."""
    is_layout: bool = False
    """Whether it is one of those that together say how many ranks lie where."""
    is_evidence: bool = False
    """Whether it says how a trial's figures are obtained, and nothing about its work."""
    visibility: Visibility = Visibility.ALWAYS

    @property
    def default(self) -> Any:
        """Its value where a sweep does not name it; None where there is none."""
        field = TrialSpec.model_fields.get(self.name)
        if self.usual is not None or field is None or field.is_required():
            return self.usual
        return field.get_default(call_default_factory=True)

    @property
    def since(self) -> int:
        """Its place among those that came after the first runs were kept; 0 for those that were there."""
        field = TrialSpec.model_fields.get(self.name)
        marks = [] if field is None else [mark.place for mark in field.metadata if isinstance(mark, Later)]
        return marks[0] if marks else 0
