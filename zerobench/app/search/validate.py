"""A run held against its own predictions: what `zerobench validate` shows and writes."""

from dataclasses import dataclass
from pathlib import Path

from zerobench.common.vocabulary import Status
from zerobench.records.store import Run, load_run
from zerobench.records.trials import ended_trials, refuse_impossible_values
from zerobench.report.figures.predictions.predicted import join
from zerobench.report.tables.part import Part
from zerobench.report.tables.validation import validation_answer, validation_parts
from zerobench.report.words.labels import labels


@dataclass(frozen=True)
class Validation:
    """Prediction errors of a run."""

    run: Run
    parts: list[Part]
    """Compared trials, then each error."""
    answer: Part
    """The errors of all phases together."""
    num_pairs: int
    """Predictions that stand beside something measured, or played solo."""
    has_failed: bool
    """True if a trial ended without figures, other than by a rule."""


def validate(path: Path) -> Validation:
    """The run at `path`. Raises UserError: it is no run, or a record of it is torn."""
    run = load_run(path)
    trials = list(ended_trials(run))
    with refuse_impossible_values(run.folder.trials):
        pairs = join(trials)
        specs = [trial.spec for trial in trials]
        names = {spec.trial_id: name for spec, name in zip(specs, labels(specs), strict=True)}
        parts, answer = list(validation_parts(trials, pairs, names)), validation_answer(pairs, names)
    answers = {Status.COMPLETED, Status.SKIPPED}
    return Validation(run, parts, answer, len(pairs), any(trial.record.status not in answers for trial in trials))
