"""Text of `zerobench strategies`: a line per strategy, or all facts of strategies and optimizers."""

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from zerobench.common.errors import unknown_choice
from zerobench.config.derived.availability import needs, unavailable
from zerobench.config.derived.machine import Machine
from zerobench.config.derived.strategy import STRATEGIES, StrategyInfo
from zerobench.config.trial.optimizers import OPTIMIZERS, OptimizerInfo, StatesPlace
from zerobench.report.explain.topic import Topic, as_text, says


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


_WIDTH = 80
_COLUMN = max(map(len, STRATEGIES)) + 2


def brief(machine: Machine, width: int = _WIDTH) -> list[str]:
    """One line per strategy, then the unavailable ones and the optimizers: fewer than 24 lines on 80 columns."""
    room = width - _COLUMN
    summaries = [
        textwrap.shorten(info.summary, room, placeholder=" ...", break_on_hyphens=False) for info in STRATEGIES.values()
    ]
    why_not = {info.name: unavailable(info, machine) for info in STRATEGIES.values()}
    # A no-break space keeps a name and its number on one line.
    sizes = (f"{info.name} {info.state_bytes:.3g}".replace(" ", "\xa0") for info in OPTIMIZERS.values())
    optimizer_lines = textwrap.wrap(f"Optimizers, bytes of states per parameter: {', '.join(sizes)}", width)
    return [
        *(f"{info.name:<{_COLUMN}}{summary}" for info, summary in zip(STRATEGIES.values(), summaries, strict=True)),
        "",
        *(line for name, why in why_not.items() if why for line in textwrap.wrap(f"{name} not here: {why}", width)),
        *(line.replace("\xa0", " ") for line in optimizer_lines),
        "All about one: zerobench strategies NAME; about each: --details",
    ]


def listing(machine: Machine, name: str | None = None) -> str:
    """All facts of the strategy or optimizer `name`, or of each. Raises UserError if it is neither."""
    known = [*STRATEGIES, *OPTIMIZERS]
    if name is not None and name not in known:
        raise unknown_choice("NAME", name, known, "zerobench strategies")
    ways = (info for info in STRATEGIES.values() if name in {None, info.name})
    updates = (info for info in OPTIMIZERS.values() if name in {None, info.name})
    return as_text([*(strategy_topic(info, machine) for info in ways), *map(optimizer_topic, updates)], _WIDTH)


def plain_values(machine: Machine, name: str | None = None) -> dict[str, Any]:
    """Facts of the strategy or optimizer `name`, or of each, as plain values."""
    strategies = [
        {
            "strategy": info.name,
            "summary": info.summary,
            "can_run_here": unavailable(info, machine) is None,
            "facts": dict(_strategy_facts(info, machine)),
        }
        for info in STRATEGIES.values()
        if name in {None, info.name}
    ]
    return {"strategies": strategies, "optimizers": optimizer_values(name)}


def strategy_topic(info: StrategyInfo, machine: Machine) -> Topic:
    """Describe one strategy: requirements, availability, evidence, axes, losses, checkpoints."""
    return facts_topic(info.name, info.summary, _strategy_facts(info, machine))


def _strategy_facts(info: StrategyInfo, machine: Machine) -> Iterator[tuple[str, str]]:
    yield "needs", needs(info)
    why_not = unavailable(info, machine)
    yield "here", "yes" if why_not is None else f"no: {why_not}"
    yield "evidence", ", ".join(info.evidences)
    for evidence, reason in info.unavailable.items():
        yield f"not {evidence}", reason
    if info.axes:
        yield "its own axes", ", ".join(info.axes)
    if info.fixed_batch is not None:
        yield "no batch_ramp", info.fixed_batch
    yield "losses", _losses(info)
    yield "checkpoints", _checkpoints(info)


def _losses(info: StrategyInfo) -> str:
    if info.is_reference:
        return "the reference"
    if not info.exact:
        return f"not those of single: {info.tolerance_reason}"
    return f"those of single within {info.loss_tolerance:g} in fp32: {info.tolerance_reason}"


def _checkpoints(info: StrategyInfo) -> str:
    if info.checkpoint is None:
        return "none"
    elsewhere = "" if info.bound_to_ranks is None else f"; on no other number of ranks: {info.bound_to_ranks}"
    return info.checkpoint + elsewhere
