"""Rules for trials that read their weights from files (weights)."""

from zerobench.config.derived.batch import autotp_size
from zerobench.config.derived.strategy import strategies_with, strategy_info
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.trial.adapter import base_of
from zerobench.config.trial.trial import Evidence, TrialSpec


def _asked(trial: TrialSpec) -> str:
    return f"weights {trial.weights}"


def _loading_needs_transformers(s: Situation) -> str | None:
    if not s.trial.is_loaded or "weights" in strategy_info(s.trial.strategy).axes:
        return None
    return (
        f"{_asked(s.trial)} at {s.trial.strategy}: it divides a model that was made without memory, which "
        f"from_pretrained does not fill; use {strategies_with('weights')}"
    )


def _loading_is_not_cut(s: Situation) -> str | None:
    if not s.trial.is_loaded or autotp_size(s.trial) == 1:
        return None
    return f"{_asked(s.trial)} with AutoTP: not held against the single process"


def _loading_does_not_quantise(s: Situation) -> str | None:
    if not s.trial.is_loaded or base_of(s.trial.adapter) is None:
        return None
    return (
        f"{_asked(s.trial)} with adapter {s.trial.adapter}: bitsandbytes quantises while transformers reads, which is "
        "not played; use weights drawn"
    )


def _loading_is_played_or_measured(s: Situation) -> str | None:
    why = _NOT_PLAYED.get(s.trial.evidence) if s.trial.is_loaded else None
    return None if why is None else f"{_asked(s.trial)} {s.trial.evidence}: {why}"


_NOT_PLAYED = {
    Evidence.FORMULA: "no formula for reading files; use simulated, or weights drawn",
    Evidence.EMULATED: "host memory is real there, and would have to hold the whole model; use simulated",
}


LOADING_RULES = rules_of(globals())
"""Applied after those of adapters."""
