"""The document of `zerobench plan`: needs of each configuration, the recommended one, reasons against the others.

Everything is a prediction, and every table says so; nothing here was measured.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.common.units import counted, format_seconds
from zerobench.common.vocabulary import Status
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.training import Training
from zerobench.config.trial.trial import Evidence
from zerobench.records import store
from zerobench.records.trials import Trial, completed, ended_trials, is_whole, refuse_impossible_values
from zerobench.report.explain.decided import Decided, decided
from zerobench.report.explain.why import why_not
from zerobench.report.figures.environment_facts import Environment
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.software import OTHERS_DIFFER, logits_notes, predicted_with
from zerobench.report.figures.trial import TrialFigures, evidence_words
from zerobench.report.tables.model import Table
from zerobench.report.tables.outcomes import outcomes_table
from zerobench.report.tables.part import Part
from zerobench.report.tables.plan_answer import PlanAnswer, answer, plan_table
from zerobench.report.tables.plan_memory import memory_tables
from zerobench.report.tables.plan_time import time_tables
from zerobench.report.words.column_units import plain
from zerobench.report.words.labels import labels, shared_lines

NOT_INCLUDED = (
    "device: other processes on the GPU, driver reservations, fragmentation over many steps, checkpoint saving",
    "host: interpreter and libraries (some GB per rank), data loading, page cache",
    (
        "lower bound of the step: kernel launches, contention between compute and communication, "
        "stragglers, data loading"
    ),
)
"""Exclusions of a plan, a sentence each."""

NOT_IN_FORMULAS = (
    "formula: allocator rounding and fragmentation (the largest that fits is up to a quarter too large); plan without "
    "--formula to include them"
)
"""Further exclusions of a plan by formulas, which do not know in which order tensors come and go."""

_BY = {
    Evidence.EMULATED.value: " on an emulated GPU",
    Evidence.SIMULATED.value: " by simulation",
    Evidence.FORMULA.value: " by formula",
}

MOST_REASONS = 5
"""Sentences that a losing row gets; the weightiest come first."""


Named = tuple[str, Trial]
"""A trial behind the name that tables give it."""


def read_plan(path: Path, cluster: Cluster) -> tuple[list[Named], list[TrialFigures]]:
    """The trials of the run at `path` with their names, and a row for each whose figures are whole.

    Raises UserError: `path` is no run, or one of its records is torn.
    """
    trials = list(ended_trials(store.load_run(path)))
    named: list[Named] = list(zip(labels([trial.spec for trial in trials]), trials, strict=True))
    return named, [trial_figures(trial, label, cluster) for label, trial in named if is_whole(trial)]


@dataclass(frozen=True)
class PlanView:
    """A plan as it is shown."""

    answer: PlanAnswer | None
    """None where no trial has figures."""
    table: Table[TrialFigures] | None
    """All that was tried."""
    details: Sequence[Part | Table[Any]]
    best: TrialFigures | None
    """None where nothing fits with room."""
    software: Sequence[str] = ()
    """Releases that it is of, and what others need."""


def plan_view(path: Path, cluster: Cluster, training: Training | None = None, made: Decided | None = None) -> PlanView:
    """The plan of the run at `path` with the decision `made`, or the one that its trials give.

    Raises UserError: `path` is no run, or one of its records is torn.
    """
    with refuse_impossible_values(path):
        shown, rows = read_plan(path, cluster)
        others = _others(shown)
        made = made or decided(rows)
        if made.searched:  # its run has more trials than are worth a row
            skipped = [named for named in shown if named[1].record.status is Status.SKIPPED]
            shown = [*((row.label, row.trial) for row in made.rows), *skipped]
            others = [" ".join([made.searched, *others])]
        environment = store.load_run(path).environment
        details = list(_details(shown, made.rows, made.best, cluster, training, environment))
        answered = answer(made, cluster, others, training) if made.rows else None
        # Short, since answer and table share one screen.
        software = [
            line.removesuffix(OTHERS_DIFFER) for line in predicted_with(environment, [row.trial for row in made.rows])
        ]
        software += [] if made.best is None else logits_notes(made.best.trial)
        return PlanView(answered, plan_table(made.rows) if made.rows else None, details, made.best, software)


def _others(shown: Sequence[Named]) -> list[str]:
    """A line for the trials without figures."""
    skipped = [trial for _, trial in shown if trial.record.status is Status.SKIPPED]
    lines = [f"{len(skipped)} skipped: {plain('; '.join(_reasons(skipped)))}"] if skipped else []
    failed = len(shown) - len(skipped) - sum(is_whole(trial) for _, trial in shown)
    return [*lines, *([f"{failed} could not be predicted: see --details."] if failed else [])]


def _reasons(skipped: Iterable[Trial]) -> list[str]:
    """Each reason once, with all strategies that it is given for."""
    given: dict[tuple[str, str], dict[str, None]] = {}
    for trial in skipped:
        reason = (trial.record.reason or "").partition(";")[0]
        before, at, after = reason.partition(f" at {trial.spec.strategy}")
        given.setdefault((before, after), {}).update({trial.spec.strategy: None} if at else {})
    return [
        before + (f" at {', '.join(strategies)}" if strategies else "") + after
        for (before, after), strategies in given.items()
    ]


def _details(
    shown: Sequence[Named],
    rows: Sequence[TrialFigures],
    best: TrialFigures | None,
    cluster: Cluster,
    training: Training | None,
    environment: Environment,
) -> Iterator[Part | Table[Any]]:
    yield _header(shown, rows, environment)
    yield from memory_tables(rows, cluster)
    yield from time_tables(rows, training)
    ended = [named for named in shown if completed(named[1]) or not is_whole(named[1])]
    yield outcomes_table([trial_figures(trial).named(label, None, None) for label, trial in ended])
    if rows:
        yield from losers(rows, best)
        yield from _expected_terms(best)
        yield from _bound_terms(best)
    unplayed = any(row.lacks_allocator for row in rows)
    yield Part("Not included", points=[*([NOT_IN_FORMULAS] if unplayed else []), *NOT_INCLUDED])


def _header(shown: Sequence[Named], rows: Sequence[TrialFigures], environment: Environment) -> Part:
    how = _BY.get(evidence_words(rows), "")
    counts = [f"{counted(len(rows), 'configuration')} predicted{how}"]
    skipped = sum(trial.record.status is Status.SKIPPED for _, trial in shown)
    failed = len(shown) - len(rows) - skipped
    counts += [f"{skipped} skipped"] if skipped else []
    counts += [f"{failed} failed"] if failed else []
    specs = [trial.spec for _, trial in shown]
    words = (*shared_lines(specs), *predicted_with(environment, [trial for _, trial in shown]))
    return Part("Plan", ", ".join(counts), text=list(words))


def losers(rows: Sequence[TrialFigures], best: TrialFigures | None) -> Iterator[Part]:
    """Reasons against the others, each compared with the recommended one, or with the nearest where none fits."""
    held = best or max(rows, key=lambda row: row.room)
    reasons_by_row = [(row, why_not(held, row)) for row in rows if row is not held]
    lines = [f"{row.label}: {'; '.join(reasons[:MOST_REASONS])}" for row, reasons in reasons_by_row if reasons]
    if lines:
        yield Part(f"Why not the others, compared with {plain(held.label)}", points=lines)


def _expected_terms(best: TrialFigures | None) -> Iterator[Part]:
    """Parts of the expected step of the recommended row, and its assumptions."""
    if best is None or best.expected is None:
        return
    expected = best.expected
    lines = [f"{name}: {format_seconds(took)} ({took / expected.step_s:.0%})" for name, took in expected.parts.items()]
    granted = [f"assumed: {words}" for words in expected.assumptions]
    yield Part(f"Expected step time of {plain(best.label)}", points=[*lines, *granted])


def _bound_terms(best: TrialFigures | None) -> Iterator[Part]:
    """Terms of the recommended row's bound, so that it can be checked by hand."""
    if best is not None and best.bound is not None and best.bound.terms:
        terms = [term for term in best.bound.terms if not term.endswith(": none")]
        yield Part(f"Lower bound of the step time of {plain(best.label)}", points=terms)
