"""Nothing is obeyed silently: which of a trial's DeepSpeed keys are, and what is said of the others.

A key of a sweep's `ds_config` was asked for by name, and is printed in the trial's: where nothing reads it, it is
refused. A file of the user's own is that of another training, and holds keys that do nothing here: they are named in a
note, and refused only where DeepSpeed would fail or train something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zerobench.common.errors import UserError, choices_for
from zerobench.config.deepspeed.check import AUTO, check_ds_config
from zerobench.config.deepspeed.conditions import Look, holds, look_of, words
from zerobench.config.deepspeed.facts import Fate, KeyFact, fact_of, key_facts
from zerobench.config.deepspeed.keys import canonical, find
from zerobench.config.deepspeed.user_file import leaves, load_user_config
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.trial.trial import TrialSpec


def why_not_obeyed(trial: TrialSpec) -> str | None:
    """Why the first key that the trial would not obey is refused; None where there is none. Raises UserError."""
    file = _file(trial)
    look = look_of(trial, file | trial.ds_config)
    reasons = (_refused("ds_config", path, value, look) for path, value in trial.ds_config.items())
    if (reason := next((reason for reason in reasons if reason is not None), None)) is not None:
        return reason
    of_file = (_refused_in_file(str(trial.ds_config_file), path, value, look) for path, value in file.items())
    return next((reason for reason in of_file if reason is not None), None)


def only_read(trials: Sequence[TrialSpec]) -> list[TrialSpec]:
    """The trials of a sweep, each without the keys that DeepSpeed reads in others of them and not in it.

    So one sweep may set up each stage beside the others. A key that none of them obeys stays, to be refused.
    """
    looks = [look_of(trial, _file(trial) | trial.ds_config) if trial.ds_config else None for trial in trials]
    passed_over = [
        [] if look is None else [path for path in trial.ds_config if not _is_met(path, look)]
        for trial, look in zip(trials, looks, strict=True)
    ]
    if not any(passed_over):
        return list(trials)
    obeyed = {
        path for trial, unread in zip(trials, passed_over, strict=True) for path in trial.ds_config.keys() - set(unread)
    }
    return [
        _without(trial, obeyed & set(unread)) if unread else trial
        for trial, unread in zip(trials, passed_over, strict=True)
    ]


def obeyed_only(trial: TrialSpec) -> TrialSpec:
    """`trial` without the keys that are refused in it: those of an engine that somebody else set up, or of a trial that
    was another before it was changed.
    """
    look = look_of(trial, _file(trial) | trial.ds_config)
    return _without(trial, {path for path, value in trial.ds_config.items() if _refused("", path, value, look)})


def would_read(trial: TrialSpec, path: str) -> bool:
    """Whether DeepSpeed would read the key in the trial, whether it is set or not."""
    if find(path) is None:  # a record of an older DeepSpeed's
        return True
    return _is_met(path, look_of(trial, trial.ds_config))


def file_notes(trial: TrialSpec) -> list[str]:
    """What must be said of the keys in the trial's own file that it does not read, in sentences; nothing where the file
    is gone.
    """
    try:
        file = _file(trial) if uses_deepspeed(trial) else {}
    except UserError:
        return []
    look = look_of(trial, file | trial.ds_config)
    paths_by_note: dict[str, list[str]] = {}
    for path, value in file.items():
        if not _is_default(path, value) and (what := _note(fact_of(path), look)) is not None:
            paths_by_note.setdefault(what, []).append(path)
    return [f"{trial.ds_config_file}: {', '.join(paths)}: {what}" for what, paths in paths_by_note.items()]


def _note(fact: KeyFact, look: Look) -> str | None:
    if fact.switch is not None and look(fact.switch) is not True:
        return None
    if fact.fate is Fate.LEFT_OUT:
        return f"not used in this trial: {fact.why}"
    if fact.fate is Fate.UNREAD:
        return f"not read by this trial: {fact.why}"
    if fact.fate is Fate.CONDITIONAL and not holds(fact.when, look):
        return f"not read by this trial: {_only(fact)}"
    if fact.fate is Fate.UNSUPPORTED and not holds(fact.when, look):
        return f"not read by this trial: DeepSpeed reads it only {words(fact.when)}"
    return None


def _refused(where: str, path: str, value: Any, look: Look) -> str | None:
    """Why a key of a sweep is refused."""
    fact = fact_of(path)
    what = f"{where}: {path}"
    if fact.fate is Fate.SECTION:
        return f"{what}: empty section; drop it"
    if fact.fate is Fate.AXIS:
        return f"{what}: set by the axis {fact.axis}; use that"
    if fact.fate in {Fate.UNREAD, Fate.LEFT_OUT, Fate.UNSUPPORTED}:
        heads = {Fate.UNREAD: "not read in a trial", Fate.LEFT_OUT: "not part of a trial"}
        return f"{what}: {heads.get(fact.fate, 'not supported here')}: {fact.why}"
    if not holds(fact.when, look):
        return f"{what}: {_only(fact)}; here it would {'fail' if fact.fails else 'do nothing'}"
    return _bad_value(what, value, fact)


def _refused_in_file(where: str, path: str, value: Any, look: Look) -> str | None:
    """Why a key of a user's file is: DeepSpeed would fail, or train something other than the trial."""
    fact = key_facts().get(f"{path}.*", fact_of(path))
    what = f"{where}: {path}"
    says_nothing = value is None or (_is_default(path, value) and not fact.by_presence)
    if says_nothing or (fact.switch is not None and look(fact.switch) is not True):
        return None
    if fact.fate is Fate.UNSUPPORTED and holds(fact.when, look):
        return f"{what}: not supported here: {fact.why}"
    if fact.fate is not Fate.CONDITIONAL:
        return None
    if not holds(fact.when, look):
        return f"{what}: {_only(fact)}, and would fail here" if fact.fails else None
    return _bad_value(what, value, fact)


def _only(fact: KeyFact) -> str:
    return f"DeepSpeed reads it only {words(fact.when)} ({fact.reader})"


def _bad_value(what: str, value: Any, fact: KeyFact) -> str | None:
    """Why DeepSpeed would fail with this value, though not with another."""
    if fact.least is not None and isinstance(value, int) and value < fact.least:
        return f"{what}: {value} must be at least {fact.least}, the number of tensors in Adam's step"
    if not fact.choices or value is None or str(value).lower() in fact.choices:
        return None
    return f"{what}: {value!r} is not known to DeepSpeed; {choices_for(value, fact.choices)}"


def _is_met(path: str, look: Look) -> bool:
    fact = fact_of(path)
    return fact.fate is not Fate.CONDITIONAL or holds(fact.when, look)


def _is_default(path: str, value: Any) -> bool:
    """Whether the value says what its absence would: `auto` is the caller's, and an empty section is nothing."""
    key = find(path)
    return value in (AUTO, None, {}) or value in fact_of(path).idle or (key is not None and value == key.default)


def _without(trial: TrialSpec, paths: set[str]) -> TrialSpec:
    kept = {path: value for path, value in trial.ds_config.items() if path not in paths}
    return trial.model_copy(update={"ds_config": kept})


def _file(trial: TrialSpec) -> dict[str, Any]:
    """Every value of the trial's own file, by full path; none without a file. Raises UserError."""
    if trial.ds_config_file is None:
        return {}
    loaded = load_user_config(trial.ds_config_file)
    check_ds_config(loaded, trial.ds_config_file)
    return {canonical(path): value for path, value in leaves(loaded)}
