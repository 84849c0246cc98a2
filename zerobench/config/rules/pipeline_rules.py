"""Rules for pipelines, torch's RPC pipeline included."""

from __future__ import annotations

from collections.abc import Callable

from zerobench.common.units import counted
from zerobench.config.derived.batch import AUTOTP_SIZE, autotp_size
from zerobench.config.derived.pipeline import pipeline_refusal
from zerobench.config.derived.strategy import strategy_info
from zerobench.config.models.architecture import complete
from zerobench.config.rules.situation import Rule, Situation, rules_of
from zerobench.config.trial.trial import Evidence, PipelineSchedule, Precision


def _blocks_not_divisible(s: Situation) -> str | None:
    if not strategy_info(s.trial.strategy).divides_layers:
        return None
    why = pipeline_refusal(s.trial, s.trial.world_size)
    return None if why is None else f"{s.trial.strategy} on {counted(s.trial.world_size, 'rank')}: {why}"


def _deepspeed_pipeline_needs_ranks(s: Situation) -> str | None:
    if not _is_deepspeeds(s) or s.trial.evidence is Evidence.MEASURED:
        return None
    return (
        f"pipeline_schedule deepspeed {s.trial.evidence}: its engine receives tensor shapes from the "
        "previous stage; use 1f1b or gpipe"
    )


def _deepspeed_pipeline_unties(s: Situation) -> str | None:
    if not _is_deepspeeds(s) or not complete(s.trial.model).get("tie_word_embeddings"):
        return None
    return (
        "pipeline_schedule deepspeed with tie_word_embeddings true: DeepSpeed's gradient norm would "
        "count the tied weight on both stages; use 1f1b or gpipe, or set it to false"
    )


def _deepspeed_pipeline_cuts_no_matrices(s: Situation) -> str | None:
    parts = autotp_size(s.trial)
    if not _is_deepspeeds(s) or parts == 1:
        return None
    return f"pipeline_schedule deepspeed with {AUTOTP_SIZE} {parts}: the stages use all ranks; use AutoTP at zero0"


def _deepspeed_pipeline_leaves_fp16_unscaled(s: Situation) -> str | None:
    # runtime/engine.py, backward; runtime/fp16/unfused_optimizer.py, step: its norm is computed from gradients, which
    # do not carry their stage (runtime/utils.py, get_weight_norm)
    if not _is_deepspeeds(s) or s.trial.precision is not Precision.FP16:
        return None
    return (
        "pipeline_schedule deepspeed with precision fp16: DeepSpeed does not scale the loss but divides "
        "gradients by the loss scale, and takes their norm on the first stage only; use 1f1b or gpipe, "
        "or bf16"
    )


def _is_deepspeeds(s: Situation) -> bool:
    has_schedules = "pipeline_schedule" in strategy_info(s.trial.strategy).axes
    return has_schedules and s.trial.pipeline_schedule is PipelineSchedule.DEEPSPEED


PIPELINE_RULES = rules_of(globals())
"""Applied among those of every strategy (strategy_rules.py)."""


def _restrict_to_rpc(rule: Callable[[Situation], str | None]) -> Rule:
    """Restrict a rule to `rpc-pipeline`, and put the strategy's name before its reason."""

    def rule_of_rpc(s: Situation) -> str | None:
        why = rule(s) if s.trial.strategy == "rpc-pipeline" else None
        return None if why is None else f"rpc-pipeline {why}"

    return rule_of_rpc


def _rpc_not_in_torch(s: Situation) -> str | None:
    return None if s.machine.has_rpc else "here: this torch has no torch.distributed.rpc; use pipeline"


def _rpc_not_on_gpus(s: Situation) -> str | None:
    if s.uses_gpus:
        return "on GPUs: torch's RPC is not verified on GPUs; use pipeline, or CPU ranks (DS_ACCELERATOR=cpu)"
    return None


def _rpc_on_one_node(s: Situation) -> str | None:
    if s.trial.num_nodes > 1:
        return (
            f"on {s.trial.num_nodes} nodes: RPC executes code from the network, so it is limited to one "
            "node's loopback interface; use pipeline"
        )
    return None


def _rpc_not_tied(s: Situation) -> str | None:
    if complete(s.trial.model).get("tie_word_embeddings"):
        return (
            "with tied embeddings: distributed autograd does not sum their gradients across stages; use "
            "a model with untied embeddings"
        )
    return None


RPC_RULES = {name: _restrict_to_rpc(rule) for name, rule in rules_of(globals()).items() if name.startswith("rpc_")}
"""Applied with the other strategies' rules, in this order."""
