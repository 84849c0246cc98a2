"""Why a pipeline cannot run as a point asks for it."""

from __future__ import annotations

from zerobench.spec.pipeline import why_not_divided
from zerobench.spec.situation import Rule, Situation
from zerobench.spec.strategy import strategy_info


def _blocks_not_divisible(s: Situation) -> str | None:
    if not strategy_info(s.trial.strategy).divides_layers:
        return None
    why = why_not_divided(s.trial, s.trial.world_size)
    return None if why is None else f"{s.trial.strategy} on {s.trial.world_size} ranks: {why}"


PIPELINE_RULES: dict[str, Rule] = {
    "blocks_not_divisible": _blocks_not_divisible,
}
"""Asked among those of every strategy (strategy_rules.py)."""
