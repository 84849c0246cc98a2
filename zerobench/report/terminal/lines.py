"""The lines of tables over the trials that a terminal shows, which are at hand whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from zerobench.report.batch_ramp import BatchFigures, batch_figures, with_their_fixed
from zerobench.report.compared.figures import figures_of
from zerobench.report.compared.rows import Compared, compare
from zerobench.report.recovery import Resumed, resumed, uninterrupted_losses
from zerobench.report.tables.model import Line, TrialName
from zerobench.report.terminal.layout import Shown
from zerobench.report.trials import Trial

T = TypeVar("T")


def of_each(shown: Iterable[Shown], figures: Callable[[Trial], Iterable[T]]) -> list[Line[T]]:
    """A line for each of the `figures` of each trial."""
    return [Line(name, found) for one in shown for name in [_name(one)] for found in figures(one.trial)]


def of_batches(shown: Iterable[Shown]) -> list[Line[BatchFigures]]:
    """The sizes of the batches of ramped trials, and of those that do the same with a fixed batch."""
    return of_each((one for one, _ in with_their_fixed((one, one.trial) for one in shown)), batch_figures)


def of_checkpoints(shown: Sequence[Shown]) -> list[Line[Resumed]]:
    """The trials that saved and were resumed."""
    trials = [one.trial for one in shown]
    found = ((one, resumed(one.trial, uninterrupted_losses(one.trial, trials))) for one in shown)
    return [Line(_name(one), row) for one, row in found if row is not None]


def compared_rows(shown: Iterable[Shown]) -> list[Compared]:
    """The sides of the trials, beside each other where a single process did their work."""
    key = {(one.trial.record.run_id, one.trial.record.trial_id): one for one in shown}
    return compare(
        [figures for one in key.values() for figures in figures_of(one.trial)],
        {name: one.label for name, one in key.items()},
        {name: one.parity for name, one in key.items()},
    )


def _name(one: Shown) -> TrialName:
    return TrialName.of(one.trial.record.run_id, one.trial.spec, one.label, one.parity)
