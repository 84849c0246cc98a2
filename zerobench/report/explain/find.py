"""Finds the trial that a name means: by its id, by a prefix that only one has, or by its name in tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerobench.common.errors import UserError, choices_for, nearest
from zerobench.records import store
from zerobench.records.trials import ended_trials
from zerobench.report.words.column_units import plain
from zerobench.report.words.labels import all_words, labels


@dataclass(frozen=True)
class NamedTrial:
    """A trial and the name that tables give it."""

    trial: store.Trial
    label: str


def named_trials(run: store.Run) -> list[NamedTrial]:
    """The trials of `run` that have ended, with the names of its tables."""
    trials = list(ended_trials(run))
    return [NamedTrial(trial, label) for trial, label in zip(trials, labels([t.spec for t in trials]), strict=True)]


def find_trial(name: str, known: Sequence[NamedTrial]) -> NamedTrial:
    """The one of `known` that `name` means: an id, a name, the start of one id, the start or a part of one name, or
    words that are true of it.

    `zero2 @ A`, as tables of several runs have it, is `zero2` of the run that was asked for.

    Raises UserError: none or several match, with the choices.
    """
    wanted = " ".join(name.removeprefix("! ").split()).partition(" @ ")[0]
    for matches in _ways(wanted, known):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UserError(f"TRIAL: {name!r} matches several trials; {_choices(name, matches, [])}")
    close = nearest(wanted, [text for labelled in known for text in (labelled.label, labelled.trial.trial_id)], count=1)
    raise UserError(f"TRIAL: {name!r} is not an ended trial of this run; {_choices(name, known, close)}")


def _ways(wanted: str, known: Sequence[NamedTrial]) -> list[list[NamedTrial]]:
    """Matches of `wanted`, the strictest way first."""
    return [
        [labelled for labelled in known if wanted == labelled.trial.trial_id],
        [labelled for labelled in known if wanted == labelled.label],
        [labelled for labelled in known if wanted == _drop_optimizer(labelled)],
        [labelled for labelled in known if labelled.trial.trial_id.startswith(wanted)],
        [labelled for labelled in known if labelled.label.startswith(wanted)],
        _plainest([labelled for labelled in known if _words_in(wanted, set(labelled.label.split()))]),
        _plainest([labelled for labelled in known if _words_in(wanted, all_words(labelled.trial.spec))]),
    ]


def _plainest(named: Sequence[NamedTrial]) -> list[NamedTrial]:
    """Those of the fewest words: `zero3 mb1`, in a table of a search, means the one that offloads nothing."""
    counts = [len(labelled.label.split()) for labelled in named]
    return [labelled for labelled, count in zip(named, counts, strict=True) if count == min(counts)]


def _drop_optimizer(labelled: NamedTrial) -> str:
    """Its name as a plan's tables have it, which choose the optimizer by the offload."""
    return " ".join(word for word in labelled.label.split() if word != labelled.trial.spec.optimizer)


def _words_in(wanted: str, words: set[str]) -> bool:
    return bool(wanted) and set(wanted.split()) <= words


def _choices(name: str, known: Sequence[NamedTrial], close: Sequence[str]) -> str:
    return choices_for(name, [plain(repr(labelled.label)) for labelled in known], "zerobench show RUN", close)
