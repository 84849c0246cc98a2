"""Why a trial that freezes weights (adapter, frozen) cannot run as a point asks."""

from __future__ import annotations

from zerobench.spec.batch import autotp_size
from zerobench.spec.situation import Rule, Situation
from zerobench.spec.strategy import STRATEGIES, strategy_info
from zerobench.spec.trial import Evidence


def _frozen_needs_loop(s: Situation) -> str | None:
    what = _asked(s)
    if what is None or "frozen" in strategy_info(s.trial.strategy).axes:
        return None
    able = ", ".join(name for name, info in STRATEGIES.items() if "frozen" in info.axes)
    return f"{what} at {s.trial.strategy}: this strategy trains all weights; use {able}"


def _frozen_is_not_cut(s: Situation) -> str | None:
    what = _asked(s)
    if what is None or autotp_size(s.trial) == 1:
        return None
    return f"{what} with AutoTP: AutoTP does not cut adapter matrices"


def _frozen_has_no_formula(s: Situation) -> str | None:
    what = _asked(s)
    if what is None or s.trial.evidence is not Evidence.FORMULA:
        return None
    return f"{what} formula: no closed form for partly trained models; use simulated or emulated"


def _frozen_is_not_saved(s: Situation) -> str | None:
    what = _asked(s)
    if what is None or s.trial.checkpoint is None:
        return None
    return f"{what} with checkpoint: not supported for partly trained models"


def _adapter_freezes_all(s: Situation) -> str | None:
    if s.trial.adapter is None or s.trial.frozen is None:
        return None
    return f"frozen {s.trial.frozen!r} with adapter {s.trial.adapter}: the adapter freezes all weights of the model"


def _asked(s: Situation) -> str | None:
    if s.trial.adapter is not None:
        return f"adapter {s.trial.adapter}"
    return None if s.trial.frozen is None else f"frozen {s.trial.frozen!r}"


ADAPTER_RULES: dict[str, Rule] = {
    "frozen_needs_loop": _frozen_needs_loop,
    "frozen_is_not_cut": _frozen_is_not_cut,
    "frozen_has_no_formula": _frozen_has_no_formula,
    "frozen_is_not_saved": _frozen_is_not_saved,
    "adapter_freezes_all": _adapter_freezes_all,
}
"""Asked with those of settings for speed."""
