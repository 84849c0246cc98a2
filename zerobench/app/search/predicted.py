"""The frontier of a plan: the most that is predicted to fit with room, for each of its cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerobench.app.search.plan import Plan
from zerobench.app.search.predict import predict
from zerobench.app.search.rounds import Answer, Question, answer
from zerobench.common.errors import UserError
from zerobench.config.derived.frontier_axes import FrontierAxis
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.sweep.plan import document
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult
from zerobench.records.trials import Trial
from zerobench.report.figures.fit import ROOM
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.plan_frontier import FrontierRow
from zerobench.report.words.labels import labels


def plan_frontiers(plan: Plan, axis: FrontierAxis, folder: Path, observer: Observer) -> Answer:
    """The most along `axis` that fits with room, by the id of each trial of `plan`; the rounds' runs lie in `folder`.

    Raises UserError: no prediction completed.
    """
    question = Question(
        axis,
        axis.words,
        cells={item.trial.trial_id: item.trial for item in plan.planned if item.skipped is None},
        capacity_bytes=int((1 - ROOM) * plan.cluster.device_memory_bytes),
        needed_bytes=lambda trial: _row(plan, trial).scaled_bytes,
    )

    def make(planned: Sequence[PlannedTrial], name: str) -> RunResult:
        return predict(planned, document(name, planned), folder, observer)

    answered = answer(question, make)
    if question.cells and not answered.frontiers:
        raise UserError(f"--frontier: no trial of {folder} completed; see its records")
    return answered


def frontier_rows(plan: Plan, answered: Answer) -> list[FrontierRow]:
    """A row of the table for each cell whose frontier was found."""
    cells = [item.trial for item in plan.planned if item.skipped is None]
    names = dict(zip([trial.trial_id for trial in cells], labels(cells), strict=True))
    largest = {name: answered.trial(name, frontier.largest) for name, frontier in answered.frontiers.items()}
    return [
        FrontierRow(names[name], frontier, None if (fits := largest[name]) is None else _row(plan, fits))
        for name, frontier in answered.frontiers.items()
    ]


def _row(plan: Plan, trial: Trial) -> TrialFigures:
    return trial_figures(trial, trial.spec.strategy, plan.cluster)
