"""A table before anybody knows where it is shown: a title, how to read it, columns with cells, rows with names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from zerobench.report.column_units import MISSING, Unit
from zerobench.report.evidence import evidence_text
from zerobench.report.parity import Parity
from zerobench.spec.trial import Evidence, TrialSpec

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column over rows made of a `T`."""

    name: str
    """Without the unit, in full."""
    cell: Callable[[T], str]
    unit: str = ""
    wide: str | None = ""
    """The header in a terminal with room for all columns; empty: as everywhere. None: not in a terminal."""
    narrow: str | None = None
    """The header in 80 columns; None: left out there."""
    is_text: bool = False
    is_whole: bool = False
    """Whether a terminal never breaks its texts, as it breaks no number."""
    is_for_files: bool = True
    """Whether Markdown and the page have it too."""

    @property
    def header(self) -> str:
        """Name and unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True)
class TrialName:
    """What every table says of the trial that a row is of."""

    run_id: str
    trial_id: str
    label: str
    evidence: str
    gpu: str | None
    is_believed: bool = True
    """Whether its losses and gradients do not speak against it."""

    @classmethod
    def of(cls, run_id: str, spec: TrialSpec, label: str, parity: Parity | None) -> TrialName:
        """The name of the trial of `spec` in the run `run_id`, which its tables call `label`."""
        is_believed = parity is None or parity.agrees
        return cls(run_id, spec.trial_id, label, spec.evidence.value, spec.prediction.gpu, is_believed)

    @property
    def evidence_text(self) -> str:
        """How its figures came to be."""
        return evidence_text(self.evidence, self.gpu)

    @property
    def is_predicted(self) -> bool:
        """Whether its figures were not seen on real ranks."""
        return self.evidence != Evidence.MEASURED.value


@dataclass(frozen=True)
class Line(Generic[T]):
    """One row: the trial that it is of, and its figures."""

    trial: TrialName
    figures: T


@dataclass(frozen=True)
class Table(Generic[T]):
    """Ready to be rendered. No lines: there is nothing to show."""

    title: str
    caption: str
    """How to read it."""
    columns: Sequence[Column[T]]
    """After the trial's name."""
    lines: Sequence[Line[T]]
    below: Sequence[str] = ()
    """What the terminal says under it."""
    more: str = ""
    """More of how to read it, which 80 columns of terminal have no room for."""
    narrow_caption: str | None = None
    """How to read it in 80 columns of terminal, where its columns are others there."""

    @property
    def for_files(self) -> list[Column[T]]:
        """The columns that Markdown and the page have."""
        return [column for column in self.columns if column.is_for_files]


def figures_of(lines: Iterable[Line[T]]) -> list[T]:
    """The figures alone, of which columns choose their units."""
    return [line.figures for line in lines]


def of_part(part: Callable[[T], S | None], show: Callable[[S], str]) -> Callable[[T], str]:
    """A cell of a part of a row's figures, which the row may lack."""

    def cell(figures: T) -> str:
        found = part(figures)
        return MISSING if found is None else show(found)

    return cell


def in_unit(unit: Unit, value: Callable[[T], float | None]) -> Callable[[T], str]:
    """A cell that shows `value` in `unit`."""
    return lambda figures: unit.show(value(figures))
