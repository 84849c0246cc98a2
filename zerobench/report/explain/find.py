"""Which trial a person means: by its id, by a prefix that only one has, or by the name that tables give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerobench import store
from zerobench.errors import UserError, nearest
from zerobench.report.column_units import plain
from zerobench.report.labels import labels
from zerobench.report.trials import LazyTrial, ended_trials

_MOST_CHOICES = 12


@dataclass(frozen=True)
class Named:
    """A trial and the name that tables give it."""

    trial: LazyTrial
    label: str


def named_trials(run: store.Run) -> list[Named]:
    """The trials of `run` that have ended, with the names of its tables."""
    trials = list(ended_trials(run))
    return [Named(trial, label) for trial, label in zip(trials, labels([t.spec for t in trials]), strict=True)]


def find_trial(name: str, known: Sequence[Named]) -> Named:
    """The one of `known` that `name` means: an id, a name, the start of one id, or the start or a part of one name.

    Raises UserError: none or several match, with the choices.
    """
    wanted = " ".join(name.removeprefix("! ").split())
    for matches in _ways(wanted, known):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UserError(f"TRIAL: {name!r} matches several trials; choices: {_listed(matches)}")
    close = nearest(wanted, [text for trial in known for text in (trial.label, trial.trial.trial_id)], count=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UserError(f"TRIAL: {name!r} is not an ended trial of this run; {hint}choices: {_listed(known)}")


def _ways(wanted: str, known: Sequence[Named]) -> list[list[Named]]:
    """What matches `wanted`, the strictest way first."""
    return [
        [trial for trial in known if wanted == trial.trial.trial_id],
        [trial for trial in known if wanted == trial.label],
        [trial for trial in known if wanted == _without_optimizer(trial)],
        [trial for trial in known if trial.trial.trial_id.startswith(wanted)],
        [trial for trial in known if trial.label.startswith(wanted)],
        [trial for trial in known if _words_in(wanted, trial.label)],
    ]


def _without_optimizer(trial: Named) -> str:
    """Its name as a plan's tables have it, which choose the optimizer by the offload."""
    return " ".join(word for word in trial.label.split() if word != trial.trial.spec.optimizer)


def _words_in(wanted: str, label: str) -> bool:
    return bool(wanted) and set(wanted.split()) <= set(label.split())


def _listed(known: Sequence[Named]) -> str:
    told = [plain(repr(trial.label)) for trial in known[:_MOST_CHOICES]]
    more = [f"and {len(known) - len(told)} more"] if len(known) > len(told) else []
    return ", ".join([*told, *more]) or "none"
