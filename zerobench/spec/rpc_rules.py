"""Why `rpc-pipeline` cannot run as a point asks for it: what torch's RPC has not, or must not be given."""

from __future__ import annotations

from collections.abc import Callable

from zerobench.spec.architecture import complete
from zerobench.spec.situation import Rule, Situation


def _of_rpc(rule: Callable[[Situation], str | None]) -> Rule:
    """The rule for `rpc-pipeline` alone, its reason after the strategy's name."""

    def rule_of_rpc(s: Situation) -> str | None:
        why = rule(s) if s.trial.strategy == "rpc-pipeline" else None
        return None if why is None else f"rpc-pipeline {why}"

    return rule_of_rpc


def _not_in_torch(s: Situation) -> str | None:
    return None if s.machine.has_rpc else "here: this torch has no torch.distributed.rpc; use pipeline"


def _no_gpus(s: Situation) -> str | None:
    if s.on_gpu:
        return "on GPUs: torch's RPC is not verified on GPUs; use pipeline, or CPU ranks (DS_ACCELERATOR=cpu)"
    return None


def _one_node(s: Situation) -> str | None:
    if s.trial.num_nodes > 1:
        return (
            f"on {s.trial.num_nodes} nodes: RPC executes code from the network, so it is limited to one "
            "node's loopback interface; use pipeline"
        )
    return None


def _tied(s: Situation) -> str | None:
    if complete(s.trial.model).get("tie_word_embeddings"):
        return (
            "with tied embeddings: distributed autograd does not sum their gradients across stages; use "
            "a model with untied embeddings"
        )
    return None


RPC_RULES: dict[str, Rule] = {
    "rpc_not_in_torch": _of_rpc(_not_in_torch),
    "rpc_not_on_gpus": _of_rpc(_no_gpus),
    "rpc_on_one_node": _of_rpc(_one_node),
    "rpc_not_tied": _of_rpc(_tied),
}
"""Asked with the other strategies' rules, in this order."""
