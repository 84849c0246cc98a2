"""Nothing is obeyed silently: finds the trial's DeepSpeed keys that have no effect, and reports or refuses them.

A key of a sweep's `ds_config` is explicit, and is part of the trial's name: it is refused if nothing reads it. A user's
own file was written for another training, and may have keys with no effect here: they are named in a note, and refused
only if DeepSpeed would fail or train something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from zerobench.common.errors import UserError, choices_for
from zerobench.config.deepspeed.check import AUTO, check_ds_config
from zerobench.config.deepspeed.facts import Condition, Fate, KeyFact, fact_of, key_facts
from zerobench.config.deepspeed.keys import canonical, find
from zerobench.config.deepspeed.reading import becomes_bf16_optimizer
from zerobench.config.deepspeed.user_file import leaves, load_user_config
from zerobench.config.derived.batch import autotp_size
from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.config.trial.trial import Offload, Precision, TrialSpec

Look = Callable[[str], Any]
"""Returns the value of a fact of the trial, or of a key by its full path."""


def ds_config_refusal(trial: TrialSpec) -> str | None:
    """Reason to refuse the first key that the trial would not obey; None if it obeys all. Raises UserError."""
    file = _file(trial)
    look = look_of(trial, file | trial.ds_config)
    reasons = (_refused("ds_config", path, value, look) for path, value in trial.ds_config.items())
    if (reason := next((reason for reason in reasons if reason is not None), None)) is not None:
        return reason
    of_file = (_refused_in_file(str(trial.ds_config_file), path, value, look) for path, value in file.items())
    return next((reason for reason in of_file if reason is not None), None)


def drop_unread_keys(trials: Sequence[TrialSpec]) -> list[TrialSpec]:
    """Drop from each trial of a sweep the keys that DeepSpeed reads only in other trials of it.

    So one sweep may set up several stages. A key that no trial obeys stays, to be refused.
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
        _drop_keys(trial, obeyed & set(unread)) if unread else trial
        for trial, unread in zip(trials, passed_over, strict=True)
    ]


def drop_refused_keys(trial: TrialSpec) -> TrialSpec:
    """Drop the keys of `trial` that would be refused, after it was changed or read from another engine."""
    look = look_of(trial, _file(trial) | trial.ds_config)
    return _drop_keys(trial, {path for path, value in trial.ds_config.items() if _refused("", path, value, look)})


def reads_key(trial: TrialSpec, path: str) -> bool:
    """Return whether DeepSpeed would read the key in the trial, set or not."""
    if find(path) is None:  # a record of an older DeepSpeed's
        return True
    return _is_met(path, look_of(trial, trial.ds_config))


def file_notes(trial: TrialSpec) -> list[str]:
    """Sentences on the keys in the trial's own file that it does not read; none if the file is gone."""
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
    """Reason to refuse a key of a sweep."""
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
    """Reason to refuse a key of a user's file: DeepSpeed would fail, or train something other than the trial."""
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
    """Reason why DeepSpeed would fail with this value, though not with another."""
    if fact.least is not None and isinstance(value, int) and value < fact.least:
        return f"{what}: {value} must be at least {fact.least}, the number of tensors in Adam's step"
    if not fact.choices or value is None or str(value).lower() in fact.choices:
        return None
    return f"{what}: {value!r} is not known to DeepSpeed; {choices_for(value, fact.choices)}"


def _is_met(path: str, look: Look) -> bool:
    fact = fact_of(path)
    return fact.fate is not Fate.CONDITIONAL or holds(fact.when, look)


def _is_default(path: str, value: Any) -> bool:
    # `auto` is left to the caller, and an empty section has no effect
    key = find(path)
    return value in (AUTO, None, {}) or value in fact_of(path).idle or (key is not None and value == key.default)


def _drop_keys(trial: TrialSpec, paths: set[str]) -> TrialSpec:
    ds_config = {path: value for path, value in trial.ds_config.items() if path not in paths}
    return trial.model_copy(update={"ds_config": ds_config})


def _file(trial: TrialSpec) -> dict[str, Any]:
    """Values of the trial's own file, by full path; empty without a file. Raises UserError."""
    if trial.ds_config_file is None:
        return {}
    loaded = load_user_config(trial.ds_config_file)
    check_ds_config(loaded, trial.ds_config_file)
    return {canonical(path): value for path, value in leaves(loaded)}


_WORDS = {
    "pipeline": ("without a pipeline", "in a pipeline"),
    "swaps": ("where nothing is swapped to NVMe", "where states are swapped to NVMe"),
    "autotp": ("without AutoTP", "with AutoTP"),
    "checkpoint": ("without a checkpoint", "with a checkpoint"),
    "bf16_optimizer": (
        "where BF16_Optimizer is not what runs",
        "in BF16_Optimizer (stage 1 in bf16 with fp32 gradients, or a pipeline in bf16)",
    ),
}
"""Boolean facts: text where one must not hold, and where it must."""


def look_of(trial: TrialSpec, given: Mapping[str, Any]) -> Look:
    """Facts of `trial`, with its keys' values from `given` (by full path) or DeepSpeed's defaults."""

    def key(path: str) -> Any:
        value = given.get(path)
        known = find(path)
        return known.default if value in (None, "auto") and known is not None else value

    facts: dict[str, Callable[[], Any]] = {
        "stage": lambda: trial.zero_stage or 0,
        "pipeline": lambda: trial.zero_stage is None,
        "offload_optimizer": lambda: trial.offload_optimizer.value,
        "offload_param": lambda: trial.offload_param.value,
        "swaps": lambda: Offload.NVME in trial.offloaded_to,
        "optimizer": lambda: trial.optimizer.value,
        "precision": lambda: trial.precision.value,
        "compile": lambda: trial.compile.value,
        "checkpoint": lambda: trial.checkpoint is not None,
        "autotp": lambda: autotp_size(trial) > 1,
        "gradient_clipping": lambda: trial.hyperparameters.gradient_clipping,
        "bf16_optimizer": lambda: becomes_bf16_optimizer(
            trial.zero_stage,
            is_bf16=trial.precision is Precision.BF16,
            accumulates_in=key("data_types.grad_accum_dtype"),
            offload=trial.offload_optimizer,
        ),
    }
    return lambda name: facts[name]() if name in facts else key(name)


def holds(when: Iterable[Condition], look: Look) -> bool:
    """Return whether any of the conditions is met; an empty list always is."""
    conditions = tuple(when)
    return not conditions or any(
        all(look(name) in values for name, values in condition.items()) for condition in conditions
    )


def words(when: Iterable[Condition]) -> str:
    """`at ZeRO stage 1 or 2, or at ZeRO stage 3 with offload_param nvme`."""
    return ", or ".join(
        " ".join(_condition_words(name, values) for name, values in condition.items()) for condition in when
    )


def _condition_words(name: str, values: tuple[Any, ...]) -> str:
    if name in _WORDS:
        return _WORDS[name][bool(values[0])]
    shown = " or ".join(str(value).lower() for value in values)
    return f"at ZeRO stage {shown}" if name == "stage" else f"with {name} {shown}"
