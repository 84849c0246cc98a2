"""Text of `zerobench strategies`: a line per strategy, or all facts of strategies and optimizers."""

import textwrap
from collections.abc import Iterator
from typing import Any

from zerobench.app.terminal.optimizers import facts_topic, optimizer_topic, optimizer_values
from zerobench.common.errors import unknown_choice
from zerobench.config.derived.availability import needs, unavailable
from zerobench.config.derived.machine import Machine
from zerobench.config.derived.strategy import STRATEGIES, StrategyInfo
from zerobench.config.trial.optimizers import OPTIMIZERS
from zerobench.report.explain.topic import Topic, as_text

_WIDTH = 80
_COLUMN = max(map(len, STRATEGIES)) + 2


def brief(machine: Machine, width: int = _WIDTH) -> list[str]:
    """One line per strategy, then the unavailable ones and the optimizers: fewer than 24 lines on 80 columns."""
    room = width - _COLUMN
    summaries = [
        textwrap.shorten(info.summary, room, placeholder=" ...", break_on_hyphens=False) for info in STRATEGIES.values()
    ]
    why_not = {info.name: unavailable(info, machine) for info in STRATEGIES.values()}
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
