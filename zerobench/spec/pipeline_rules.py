"""Why a pipeline cannot run as a point asks for it."""

from __future__ import annotations

from zerobench.spec.architecture import complete
from zerobench.spec.pipeline import why_not_divided
from zerobench.spec.situation import Rule, Situation
from zerobench.spec.strategy import strategy_info
from zerobench.spec.trial import Evidence, PipelineSchedule


def _blocks_not_divisible(s: Situation) -> str | None:
    if not strategy_info(s.trial.strategy).divides_layers:
        return None
    why = why_not_divided(s.trial, s.trial.world_size)
    return None if why is None else f"{s.trial.strategy} on {s.trial.world_size} ranks: {why}"


def _deepspeed_pipeline_needs_ranks(s: Situation) -> str | None:
    if not _is_deepspeeds(s) or s.trial.evidence is Evidence.MEASURED:
        return None
    return (
        f"pipeline_schedule deepspeed {s.trial.evidence}: its engine asks the stage before for the shapes that it "
        "receives; use 1f1b, or gpipe"
    )


def _deepspeed_pipeline_unties(s: Situation) -> str | None:
    if not _is_deepspeeds(s) or not complete(s.trial.model).get("tie_word_embeddings"):
        return None
    return (
        "pipeline_schedule deepspeed with tie_word_embeddings true: DeepSpeed's norm of all gradients would count the "
        "tied one on both stages that hold it; use 1f1b or gpipe, or set it to false"
    )


def _is_deepspeeds(s: Situation) -> bool:
    divides_layers = strategy_info(s.trial.strategy).divides_layers
    return divides_layers and s.trial.pipeline_schedule is PipelineSchedule.DEEPSPEED


PIPELINE_RULES: dict[str, Rule] = {
    "blocks_not_divisible": _blocks_not_divisible,
    "deepspeed_pipeline_needs_ranks": _deepspeed_pipeline_needs_ranks,
    "deepspeed_pipeline_unties": _deepspeed_pipeline_unties,
}
"""Asked among those of every strategy (strategy_rules.py)."""
