"""Losses and gradients' norms of completed trials, held against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from zerobench.report.figures.parity import Parity
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, lines_of, of_part
from zerobench.report.words.column_units import MISSING

TITLE = "Loss parity"
HOW_TO_READ = (
    "Equal weights, data and global batch: strategies may differ by rounding only. Loss of the first and "
    "the last step; largest difference over all steps. Gradient norm: largest relative difference of the "
    "norms before clipping."
)
UNSTABLE = (
    " To step n: the reference's gradient norm then more than doubles, and unstable training amplifies rounding; later "
    "steps are not judged."
)


@dataclass(frozen=True)
class Losses:
    """The losses of one trial, and what is said of them."""

    first: float
    last: float
    parity: Parity | None
    verdict: str


def parity_table(trials: Sequence[TrialFigures]) -> Table[Losses]:
    """A row for each completed trial whose losses are of the whole batch."""
    references = {trial.parity.reference for trial in trials if trial.parity is not None}
    names = _names(trials)

    def rows(trial: TrialFigures) -> Iterator[Losses]:
        first, last = trial.loss_first, trial.loss_last
        if first is not None and last is not None:
            yield Losses(first, last, trial.parity, _verdict(trial, references, names))

    columns: list[Column[Losses]] = [
        Column("first loss", lambda row: f"{row.first:.6f}", narrow="first"),
        Column("last loss", lambda row: f"{row.last:.6f}", narrow="last"),
        Column("difference", _column(lambda parity: parity.difference), narrow="diff"),
        Column("tolerance", _column(lambda parity: parity.tolerance), narrow="tolerance"),
        Column("gradient norm", _column(lambda parity: parity.norm_difference), narrow="norm"),
        Column("norm tolerance", _column(lambda parity: parity.norm_tolerance), wide="tolerance"),
        Column("verdict", lambda row: row.verdict, narrow="verdict", is_text=True),
    ]
    is_cut = any(trial.parity is not None and trial.parity.is_cut for trial in trials)
    return Table(TITLE, HOW_TO_READ + (UNSTABLE if is_cut else ""), columns, lines_of(trials, rows))


def _column(value: Callable[[Parity], float | None]) -> Callable[[Losses], str]:
    return of_part(lambda row: row.parity, lambda parity: _small(value(parity)))


def _small(value: float | None) -> str:
    return MISSING if value is None else "0" if value == 0 else f"{value:.2g}"


def _verdict(trial: TrialFigures, references: set[str], names: dict[str, str]) -> str:
    if trial.parity is not None:
        reference = names.get(trial.parity.reference, trial.parity.reference)
        whom = f" with {reference}" if len(references) > 1 else ""
        if not trial.parity.is_judged and trial.parity.agrees:
            return "unjudged" + (f", beside {reference}" if whom else "")
        until = f" to step {trial.parity.num_steps}" if trial.parity.is_cut and trial.parity.agrees else ""
        return f"{'agrees' if trial.parity.agrees else 'DISAGREES'}{whom}{until}"
    return "reference" if trial.trial_id in references else "no reference"


def disbelieved(trials: Sequence[TrialFigures]) -> list[str]:
    """A line for each trial whose losses or gradients speak against it, to stand above all tables."""
    names = _names(trials)
    return [
        f"{trial.label}: {trial.parity.disagreeing} differ from those of "
        f"{names.get(trial.parity.reference, trial.parity.reference)} by {_apart(trial.parity)}: figures invalid"
        for trial in trials
        if trial.parity is not None and not trial.parity.agrees
    ]


def _apart(parity: Parity) -> str:
    """Distance of what disagrees, and its tolerance."""
    return " and ".join(f"{_small(far)} (tolerance {_small(most)})" for _, far, most in parity.disagreements)


def _names(trials: Sequence[TrialFigures]) -> dict[str, str]:
    """Labels by trial_id."""
    return {trial.trial_id: trial.label for trial in trials}
