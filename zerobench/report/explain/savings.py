"""Savings of single settings at a trial's steady peak: as other trials of the run recorded them, else estimated.

Closed forms stand behind a wall: whoever may ask them hands in Estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Place, StepKind
from zerobench.records.instants import Instant, largest_peak
from zerobench.records.trials import Trial, completed
from zerobench.report.explain.find import NamedTrial
from zerobench.report.explain.remedies import Remedy, remedies
from zerobench.report.explain.topic import Line, Topic, says, signed_bytes

FAR = 0.10
"""Closed forms that miss the peak itself by more estimate no savings."""
TELLING = 0.005
"""Savings that are a smaller part of the peak are left out."""
_MOST = 4


@dataclass(frozen=True)
class Saving:
    """One setting changed, and how the steady peak changes with it."""

    setting: str
    more_bytes: int
    """Below 0 where the peak is smaller."""
    recorded_by: str | None = None
    """The trial of the run that has this setting and all else equal; None of an estimate."""

    @property
    def text(self) -> str:
        """`reduce_bucket_size: 5e7: -858.31 MiB (recorded by zero3 reduce_bucket=5e7)`."""
        basis = "" if self.recorded_by is None else f" (recorded by {self.recorded_by})"
        return f"{self.setting}: {signed_bytes(self.more_bytes)}{basis}"


@dataclass(frozen=True)
class Estimate:
    """The steady peak of a trial by closed forms, and the settings that make it smaller."""

    peak_bytes: int
    error: float
    """(closed forms - recorded) / recorded."""
    savings: Sequence[Saving]
    """Empty where the error is larger than FAR, or than each saving."""


class Estimates(Protocol):
    """Closed forms of a recorded trial."""

    def peak(self, trial: Trial, seen: Instant, offered: Sequence[Remedy]) -> Estimate | None:
        """Return the estimate of `seen` and of the changes `offered`; None without closed forms of the trial."""

    def needed_bytes(self, trial: Trial) -> int | None:
        """Return the largest device peak of a trial that did not complete; None without closed forms of it."""


@dataclass(frozen=True)
class Savings:
    """The settings that make a steady peak smaller, with their savings as far as these are known."""

    changes: Sequence[Remedy]
    """The changes offered."""
    known: Sequence[Saving]
    """The largest saving first."""
    estimate: Estimate | None


def savings(trial: Trial, seen: Instant, others: Sequence[NamedTrial], estimates: Estimates | None) -> Savings:
    """Return the savings of the changes offered at `seen`; `others` are the trials of the same run."""
    changes = offered(trial, seen)
    recorded = {one.setting: one for one in _recorded(trial, seen, changes, others)}
    estimate = estimates.peak(trial, seen, changes) if estimates is not None else None
    estimated = {one.setting: one for one in (estimate.savings if estimate is not None else ())}
    known = sorted((estimated | recorded).values(), key=lambda saving: saving.more_bytes)
    return Savings(changes, [saving for saving in known if saving.more_bytes < 0], estimate)


def offered(trial: Trial, seen: Instant) -> list[Remedy]:
    """Return the remedies of all categories at the peak that are settings, each once."""
    changes = {
        change.setting: change
        for category, nbytes in seen.categories.items()
        for change in remedies(trial, category, nbytes, seen.largest_part(category))
    }
    return [change for setting, change in changes.items() if setting]


def _recorded(trial: Trial, seen: Instant, changes: Sequence[Remedy], others: Sequence[NamedTrial]) -> list[Saving]:
    by_work = {other.trial.spec.config_hash: other for other in others if completed(other.trial)}
    found = []
    for change in changes:
        other = by_work.get(change.applied(trial.spec).config_hash)
        peak = None if other is None else largest_peak(other.trial, StepKind.STEADY, Place.DEVICE)
        if other is not None and peak is not None:
            found.append(Saving(change.setting, peak.total_bytes - seen.total_bytes, other.label))
    return found


def savings_topic(known: Savings, caution: str | None) -> Topic:
    """Return the settings that change the steady peak most; `caution`: what they leave as it is."""
    estimate = known.estimate
    lines = [Line(saving.text) for saving in known.known[:_MOST]]
    brief = lines[:2]
    estimated = any(saving.recorded_by is None for saving in known.known[:_MOST])
    if estimate is None:
        names = {saving.setting for saving in known.known}
        untried = [change.setting for change in known.changes if change.setting not in names]
        lines += says(f"Not tried: {'; '.join(untried)} (--changes plays them)." if untried else None)
    elif estimated or not lines:
        lines += says(_basis(estimate, has_savings=bool(lines)))
    effects = [{"setting": saving.setting, "more_bytes": saving.more_bytes} for saving in known.known]
    formula = (None, None) if estimate is None else (estimate.peak_bytes, estimate.error)
    figures = {"knobs": {"formula_bytes": formula[0], "error": formula[1], "effects": effects}}
    title = "Settings that change the steady peak most"
    return Topic(
        title, [*lines, *says(caution if lines else None)], figures if effects or estimate is not None else {}, brief
    )


def _basis(estimate: Estimate, *, has_savings: bool) -> str:
    off = f"the closed forms give {format_bytes(estimate.peak_bytes)} for this peak ({100 * estimate.error:+.1f}%)"
    if abs(estimate.error) > FAR:
        return f"Not available: {off}; used only below {100 * FAR:g}%."
    if not has_savings:
        return f"Savings of single settings are within the closed forms' error ({off})."
    return f"By difference of closed forms, one setting changed, all else equal; {off}."
