"""Figures of single trials that tables show a line of, kept until all trials are read and have names.

What is kept of a trial is a few numbers of the few trials that have such figures: stages of a pipeline, the sides of a
parameter server, the sizes of a batch that grows, checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from zerobench.records import Recovery
from zerobench.report.batch_ramp import BatchFigures, batch_figures, work_of
from zerobench.report.compared.rows import Key
from zerobench.report.pipeline import StageRow, stages
from zerobench.report.recovery import Resumed, distance, resumed, uninterrupted_losses
from zerobench.report.server import Side, sides
from zerobench.report.tables.model import Line, TrialName
from zerobench.report.trials import LossesOnly, Trial

T = TypeVar("T")


@dataclass(frozen=True)
class FigureLines:
    """What tables/ makes tables of."""

    sides: Sequence[Line[Side]]
    checkpoints: Sequence[Line[Resumed]]
    stages: Sequence[Line[StageRow]]
    batches: Sequence[Line[BatchFigures]]
    """Of ramped trials, and of those that do the same with a fixed batch."""


@dataclass(frozen=True)
class _Resumed:
    """A trial's checkpoints, while the trials that its losses are held against are still to be read."""

    key: Key
    figures: Resumed
    recovery: Recovery
    losses: LossesOnly


class GatheredFigures:
    """Takes one trial after the other."""

    def __init__(self) -> None:
        self._sides: list[tuple[Key, Side]] = []
        self._stages: list[tuple[Key, StageRow]] = []
        self._batches: list[tuple[Key, str, BatchFigures]] = []
        self._ramped: set[str] = set()
        self._checkpoints: list[tuple[Key, Resumed]] = []
        self._unjudged: list[_Resumed] = []

    def add(self, trial: Trial, losses: LossesOnly) -> None:
        """Take the figures of `trial`, whose losses are `losses`."""
        key = trial.record.run_id, trial.record.trial_id
        self._sides += [(key, side) for side in sides(trial)]
        self._stages += [(key, stage) for stage in stages(trial)]
        work = work_of(trial)
        self._batches += [(key, work, figures) for figures in batch_figures(trial)]
        if trial.spec.batch_ramp is not None:
            self._ramped.add(work)
        found, recovery = resumed(trial, ()), trial.record.recovery
        if found is not None and recovery is not None:
            self._unjudged.append(_Resumed(key, found, recovery, losses))

    def end_run(self, trials: Sequence[LossesOnly]) -> None:
        """All trials of a run have been read: each resume's losses are held against the same work without a fault."""
        for one in self._unjudged:
            off = distance(one.recovery, uninterrupted_losses(one.losses, trials))
            self._checkpoints.append((one.key, replace(one.figures, loss_distance=off)))
        self._unjudged = []

    def lines(self, name: Callable[[Key], TrialName]) -> FigureLines:
        """The lines, each with its trial's name."""
        batches = [(key, figures) for key, work, figures in self._batches if work in self._ramped]
        return FigureLines(
            sides=_lines(self._sides, name),
            checkpoints=_lines(self._checkpoints, name),
            stages=_lines(self._stages, name),
            batches=_lines(batches, name),
        )


def _lines(found: Sequence[tuple[Key, T]], name: Callable[[Key], TrialName]) -> list[Line[T]]:
    return [Line(name(key), figures) for key, figures in found]
