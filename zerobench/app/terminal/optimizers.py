"""Optimizers in `zerobench strategies`, from their entries alone."""

from collections.abc import Iterable, Iterator
from typing import Any

from zerobench.config.trial.optimizers import OPTIMIZERS, OptimizerInfo, StatesPlace
from zerobench.report.explain.topic import Topic, says


def optimizer_values(name: str | None = None) -> list[dict[str, Any]]:
    """Facts of the optimizer `name`, or of each, as plain values."""
    return [
        {
            "optimizer": info.name,
            "title": info.title,
            "state_bytes": info.state_bytes,
            "facts": dict(_optimizer_facts(info)),
        }
        for info in OPTIMIZERS.values()
        if name in {None, info.name}
    ]


def optimizer_topic(info: OptimizerInfo) -> Topic:
    """Describe one optimizer: its states, their possible places, and the losses it is compared with."""
    return facts_topic(info.name, info.title, _optimizer_facts(info))


def facts_topic(name: str, title: str, facts: Iterable[tuple[str, str]]) -> Topic:
    """Build a topic with one line per fact."""
    return Topic(f"{name}: {title}", says(*(f"{word}: {text}" for word, text in facts)))


def _optimizer_facts(info: OptimizerInfo) -> Iterator[tuple[str, str]]:
    yield "states", _state_sizes(info)
    if info.place is not StatesPlace.ANY:
        yield "under DeepSpeed", "offloaded only" if info.place is StatesPlace.HOST else "on the device only"
    if info.deepspeed is None:
        yield "under DeepSpeed", "passed to it (client optimizer)"
    if info.plain is not None:
        yield "without DeepSpeed", info.plain
    yield "losses", f"compared with single, optimizer family {info.family}"
    if info.inexact is not None:
        yield "not compared", info.inexact
    if info.inexact_in_parts is not None:
        yield "not compared where states are partitioned", info.inexact_in_parts
    if info.not_on_nvme is not None:
        yield "not on NVMe", info.not_on_nvme
    if info.inexact_where_clipped is not None:
        yield "not compared where states are partitioned and gradients clipped", info.inexact_where_clipped
    if info.not_saved is not None:
        yield "no checkpoint", info.not_saved
    for evidence, reason in info.unavailable.items():
        yield f"not {evidence}", reason
    for strategy, reason in info.refused.items():
        yield f"not {strategy}", reason


def _state_sizes(info: OptimizerInfo) -> str:
    if not info.states:
        return "none"
    parts = (
        f"{state.category.replace('_', ' ')} {state.bytes_per_element:g}{' of some parameters' * state.is_partial}"
        for state in info.states
    )
    least = "at least " if info.has_partial_states else ""
    return f"{least}{info.state_bytes:g} bytes per parameter ({', '.join(parts)})"
