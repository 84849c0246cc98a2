"""A plan or a search carried out and decided: the one way there for the command line and for Python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from zerobench.app.search.measured_best import MeasuredBest
from zerobench.app.search.plan import Plan
from zerobench.app.search.played_rounds import Rounds
from zerobench.app.search.predict import predict
from zerobench.app.search.relief import relieve
from zerobench.app.search.searched import WIDTH, SearchOutcome, searched
from zerobench.common.units import counted
from zerobench.config.trial.trial import Evidence
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult
from zerobench.records.folder import RunFolder
from zerobench.report.documents.view import read_plan
from zerobench.report.explain.decided import Decided, Relief, decided, decision, named_in_run
from zerobench.report.explain.decision import Decision, keep
from zerobench.report.figures.trial import TrialFigures

_PLAYED = {Evidence.EMULATED: "tried on an emulated GPU", Evidence.SIMULATED: "simulated"}


@dataclass(frozen=True)
class Outcome:
    """Result of a plan or a search."""

    result: RunResult
    decided: Decided
    search: SearchOutcome | None = None
    """None where each configuration was predicted as it stands."""

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.result.folder.path

    @property
    def best(self) -> TrialFigures | None:
        """The recommended row; None where nothing fits with room."""
        return self.decided.best

    def measured(self, proved: MeasuredBest) -> Outcome:
        """The outcome after the best few were measured: the fastest of them is the choice."""
        if proved.best is None:
            return self
        [best] = named_in_run(self.path, [proved.best])
        return replace(self, decided=self.decided.measured(best, proved.device))

    def keep(self) -> Decision:
        """Make the decision, and store it with the run."""
        made = decision(self.path, self.decided)
        keep(RunFolder(self.path), made)
        return made


def outcome(plan: Plan, reports: Path, observer: Observer, *, relieves: bool = True) -> Outcome:
    """Carry out `plan` in a run under `reports`; where nothing fits, try what makes it fit (`relieves`).

    Raises UserError as its predictions do, and KeyboardInterrupt where someone stopped a search.
    """
    if plan.varied is not None:
        return _searched(plan, reports, observer)
    result = predict(plan.planned, plan.document, reports, observer)
    if result.interrupted:
        return Outcome(result, Decided((), None))
    _, rows = read_plan(result.folder.path, plan.cluster)
    made = decided(rows)
    if made.choice is not None or not rows or not relieves:
        return Outcome(result, made)
    rounds = Rounds(plan, reports, observer, result)
    found, relief = relieve(plan, rounds, observer.note)
    named = named_in_run(result.folder.path, [*rows, *found])
    relief = replace(relief, was_tight=any(row.fits for row in rows))
    return Outcome(rounds.result or result, decided(named, relief))


def _searched(plan: Plan, reports: Path, observer: Observer) -> Outcome:
    """Search the plan's variants; `tune` varies all that relief would, a plan less."""
    tunes = plan.varied is not None and plan.varied.sets_keys
    rounds = Rounds(plan, reports, observer)
    search = searched(plan, rounds, observer, WIDTH if tunes else None)
    rows, relief = list(search.rows), None
    if search.best is None:
        if tunes:
            relief = Relief("activation checkpointing, smaller micro batches, offload and smaller buckets")
        else:
            found, relief = relieve(plan, rounds, observer.note)
            relief = replace(relief, was_tight=any(row.fits for row in rows))
            rows += [row for row in found if row.spec.config_hash not in search.tried_hashes]
    path = search.result.folder.path
    variants = counted(search.num_variants, "variant")
    played = _PLAYED.get(plan.world.evidence, "in the table")
    words = f"Searched: {variants} by formula, {search.num_tried} {played}."
    return Outcome(rounds.result or search.result, decided(named_in_run(path, rows), relief, words), search)
