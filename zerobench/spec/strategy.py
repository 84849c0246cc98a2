"""The ways to train that a sweep may name: a new one is an entry here and a file under `worker/strategies`."""

from __future__ import annotations

from zerobench.errors import unknown_choice
from zerobench.spec.base import Spec


class StrategyInfo(Spec):
    """What the command line, the rules and the reports need to know of a strategy without running it."""

    name: str
    summary: str
    """One line for people."""
    zero_stage: int | None = None
    """ZeRO stage; None for strategies without DeepSpeed's sharding."""
    uses_deepspeed: bool = True
    """Whether ds_config and offload mean anything to it."""
    is_reference: bool = False
    """One process that trains the whole global batch; the others' losses are held against it."""
    exact: bool = True
    """Whether it computes what the reference computes, but for the order of additions, and is judged by that.
    How close is close enough depends on the precision and is said where losses are compared; a strategy that
    changes the arithmetic (compressed gradients, stale ones) is not exact and is shown unjudged."""


STRATEGIES: dict[str, StrategyInfo] = {
    info.name: info
    for info in (
        StrategyInfo(
            name="single",
            summary="a plain torch loop in one process, on the same global batch: the reference",
            uses_deepspeed=False,
            is_reference=True,
        ),
        StrategyInfo(name="zero0", summary="DeepSpeed, all model states on every rank", zero_stage=0),
        StrategyInfo(name="zero1", summary="ZeRO-1: optimizer states partitioned", zero_stage=1),
        StrategyInfo(name="zero2", summary="ZeRO-2: gradients partitioned too", zero_stage=2),
        StrategyInfo(name="zero3", summary="ZeRO-3: parameters partitioned too", zero_stage=3),
    )
}


def strategy_info(name: object) -> StrategyInfo:
    """The entry of `name`. Raises UserError with the nearest right name and all choices."""
    if isinstance(name, str) and name in STRATEGIES:
        return STRATEGIES[name]
    raise unknown_choice("strategy", name, STRATEGIES)
