"""The trials of a search, round by round in one run, which then holds all that was tried."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobench.app.search.plan import Plan
from zerobench.app.search.predict import extend, predict
from zerobench.common.errors import UserError
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.sweep.plan import checked, document, extended_document, replace_evidence
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult
from zerobench.records.store import load_run
from zerobench.records.trials import ended_trials, is_whole
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.trial import TrialFigures

MICRO_BATCHES_PLAYED = 3
"""Of a step, in a trial: the first one makes gradients, the second adds to them, the last hands them on; all others are
like the second."""


class Rounds:
    """Predicts the trials of each round, in one run: a new one, or that of the plan's own trials (`begun`)."""

    def __init__(self, plan: Plan, reports: Path, observer: Observer, begun: RunResult | None = None) -> None:
        self._plan, self._reports, self._observer = plan, reports, observer
        self.result = begun
        self._asked: Mapping[str, Any] | None = None
        if begun is not None:
            self._asked, self._planned = plan.document, list(plan.planned)
            return
        skipped = [item for item in plan.planned if item.skipped is not None]
        if (varied := plan.varied) is not None:  # as all others, so that names need not tell their batches apart
            skipped = [item.model_copy(update={"trial": varied.smallest(item.trial)}) for item in skipped]
        self._planned = skipped

    def make(self, variants: Sequence[TrialFigures]) -> Sequence[TrialFigures]:
        """The rows of `variants`, which are by formula, as the plan's world has them; without those that failed."""
        return self.play([row.spec for row in variants])

    def play(self, specs: Sequence[TrialSpec]) -> Sequence[TrialFigures]:
        """The rows of `specs`, without those that failed; what the run has already is not played again."""
        world = self._plan.world.evidence
        there = {item.trial.config_hash for item in self._planned if item.skipped is None}
        new = [shortened(spec) for spec in specs if spec.config_hash not in there]
        result = self.result
        if new or result is None:
            more = replace_evidence(checked(new, self._plan.cluster), world)
            self._planned += more
            result = self.result = self._run(more)
        trials = {
            trial.spec.config_hash: trial
            for trial in ended_trials(load_run(result.whole().path))
            if is_whole(trial) and trial.spec.evidence is world
        }
        if not trials:
            other = "; or try --evidence simulated" if world is Evidence.EMULATED else ""
            raise UserError(f"no trial of {result.folder.path} completed; see its records{other}")
        made = [trials[spec.config_hash] for spec in specs if spec.config_hash in trials]
        return [trial_figures(trial, trial.spec.strategy, self._plan.cluster) for trial in made]

    def _run(self, more: Sequence[PlannedTrial]) -> RunResult:
        if self._asked is None:
            sweep = document(self._plan.name, self._planned)
        else:  # what was asked stays as it was written
            sweep = self._asked = extended_document(self._asked, more)
        if self.result is None:
            return predict(self._planned, sweep, self._reports, self._observer)
        result = extend(self.result.folder, self._planned, sweep, self._observer)
        statuses = self.result.statuses + result.statuses
        return RunResult(self.result.folder, statuses, interrupted=result.interrupted)


def shortened(spec: TrialSpec) -> TrialSpec:
    """`spec` with as many micro-batches to play as it takes to see all that its memory ever holds."""
    prediction = spec.prediction.model_copy(update={"micro_batches": MICRO_BATCHES_PLAYED})
    return spec.model_copy(update={"prediction": prediction})
