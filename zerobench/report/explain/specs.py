"""In what two trials differ: the settings that were asked, as a person writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerobench.config.deepspeed import reads_key
from zerobench.config.deepspeed.case import Case
from zerobench.config.deepspeed.reading import get
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.trials import Trial, case_of
from zerobench.report.words.labels import brief

_DEFAULT = " (default)"
_NOT_KNOWN = "unknown"
_NOT_SETTINGS = {"ds_config", "model", "own", "repeat", "steps", "timeout_s"}


def setting_differences(a: Trial, b: Trial) -> list[str]:
    """`strategy: zero2 -> zero3`, one for each setting in which the trials differ; empty where in none."""
    ours, theirs = _settings(a.spec), _settings(b.spec)
    names = dict.fromkeys([*ours, *theirs])
    pairs = {name: (ours.get(name), theirs.get(name)) for name in names}
    settings = [
        f"{name}: {_shown(value)} -> {_shown(other)}" for name, (value, other) in pairs.items() if value != other
    ]
    return [*settings, *_deepspeed(a, b)]


def _settings(spec: TrialSpec) -> dict[str, Any]:
    plain = spec.model_dump(mode="json", exclude=_NOT_SETTINGS)
    plain |= {name: _NOT_KNOWN for name in plain if not spec.knows(name)}
    flat = {"model": spec.model.name, **{f"model.{key}": value for key, value in spec.model.hf_config.items()}}
    for name, value in plain.items():
        inner = value if isinstance(value, Mapping) else None
        flat |= {name: value} if inner is None else {f"{name}.{key}": inner_value for key, inner_value in inner.items()}
    return flat


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else brief(value)
    return text if len(text) <= 60 else "(another one)"


def _deepspeed(a: Trial, b: Trial) -> list[str]:
    """The DeepSpeed keys that either sets and that differ, as they take effect; defaults are those of DeepSpeed."""
    cases = case_of(a), case_of(b)
    keys = dict.fromkeys([*a.spec.ds_config, *b.spec.ds_config])
    keys.pop("zero_optimization.stage", None)  # as the strategy says
    lines = []
    for key in keys:
        values = [_effective(case, trial, key) for case, trial in _both(cases, a, b)]
        if values[0] != values[1]:
            marks = [
                "" if case is None or _sets(trial, key) or not reads_key(trial.spec, key) else _DEFAULT
                for case, trial in _both(cases, a, b)
            ]
            lines.append(f"{key.rpartition('.')[2]}: {values[0]}{marks[0]} -> {values[1]}{marks[1]}")
    return lines


def _both(cases: tuple[Case | None, Case | None], a: Trial, b: Trial) -> list[tuple[Case | None, Trial]]:
    return list(zip(cases, (a, b), strict=True))


def _effective(case: Case | None, trial: Trial, key: str) -> str:
    if case is None:
        return "none, without DeepSpeed"
    return _shown(get(case.config, key)) if _sets(trial, key) or reads_key(trial.spec, key) else "not read"


def _sets(trial: Trial, key: str) -> bool:
    return key in trial.spec.ds_config
