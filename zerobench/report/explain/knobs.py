"""Which of a trial's remedies would change its peak, and by how much, where the closed forms can say it.

The closed forms are evaluated twice, as the trial is and with one setting changed, and the difference of the two peaks
is told. Where they miss the trial's own peak by more than FAR they say nothing; an effect that is smaller than that
error is not told either. Nothing is run.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Place, StepKind
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.memory.explained import knows_work
from zerobench.estimate.memory.record import formula_record
from zerobench.records.instants import Instant, peak_instant
from zerobench.records.trials import Trial
from zerobench.report.explain.remedies import Remedy, remedies

FAR = 0.10
"""The closed forms are not asked what a setting does where they miss the peak itself by more."""
_TELLING = 0.005
"""An effect that is a smaller part of the peak is not told."""


@dataclass(frozen=True)
class Knob:
    """A setting changed, and what it makes of the steady peak."""

    text: str
    more_bytes: int
    """Of the closed forms' peak; below 0 where it becomes smaller."""


@dataclass(frozen=True)
class Knobs:
    """What the closed forms say of the steady peak of one trial."""

    formula_bytes: int
    error: float
    """(closed forms - seen) / seen."""
    effects: tuple[Knob, ...]
    """The largest saving first; empty where the closed forms are too far off."""


def knobs(trial: Trial, seen: Instant) -> Knobs | None:
    """The settings that would make the steady peak `seen` smaller; None for a trial without closed forms."""
    formula_bytes = formula_peak_bytes(trial.spec, seen.rank)
    if formula_bytes is None or not seen.total_bytes:
        return None
    error = formula_bytes / seen.total_bytes - 1
    if abs(error) > FAR:
        return Knobs(formula_bytes, error, ())
    least = max(abs(formula_bytes - seen.total_bytes), _TELLING * seen.total_bytes)
    effects = []
    for change in _changes(trial, seen):
        nbytes = formula_peak_bytes(change.applied(trial.spec), seen.rank)
        if nbytes is not None and formula_bytes - nbytes > least:
            effects.append(Knob(change.setting, nbytes - formula_bytes))
    return Knobs(formula_bytes, error, tuple(sorted(effects, key=lambda knob: knob.more_bytes)))


def formula_peak_bytes(spec: TrialSpec, rank: int = 0, step: StepKind = StepKind.STEADY) -> int | None:
    """The device's peak in `step` by the closed forms; None where there are none for this model or strategy."""
    if not knows_work(spec):
        return None
    prediction = spec.prediction.model_copy(update={"rank": rank})
    try:
        record = formula_record(spec.model_copy(update={"prediction": prediction}), plays_allocator=False)
    except UserError:
        return None
    peak = peak_instant(record, step, Place.DEVICE)
    return None if peak is None else peak.total_bytes


def _changes(trial: Trial, seen: Instant) -> list[Remedy]:
    """Remedies of all categories at the peak that a closed form can evaluate, each once."""
    known = {
        change.setting: change
        for category, nbytes in seen.categories.items()
        for change in remedies(trial, category, nbytes, seen.largest_part(category))
    }
    return [change for setting, change in known.items() if setting]
