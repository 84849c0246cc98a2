"""The text of `zerobench strategies`: a few lines of at most 80 columns for each strategy, from its entry alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from zerobench.spec.availability import needs, unavailable
from zerobench.spec.machine import Machine
from zerobench.spec.strategy import STRATEGIES, StrategyInfo

_WIDTH = 80
_INDENT = " " * (max(map(len, STRATEGIES)) + 2)


def listing(machine: Machine) -> list[str]:
    """The lines for every strategy on `machine`."""
    return [line for info in STRATEGIES.values() for line in entry(info, machine)]


def as_plain(machine: Machine) -> list[dict[str, Any]]:
    """The same facts of each, for programs."""
    return [
        {
            "strategy": info.name,
            "summary": info.summary,
            "can_run_here": unavailable(info, machine) is None,
            "facts": dict(_facts(info, machine)),
        }
        for info in STRATEGIES.values()
    ]


def entry(info: StrategyInfo, machine: Machine) -> list[str]:
    """One strategy: what it is, what it needs, whether it can run, its worlds, its own axes, its losses."""
    head, *more = textwrap.wrap(info.summary, _WIDTH - len(_INDENT))
    lines = [f"{info.name:<{len(_INDENT)}}{head}", *(_INDENT + line for line in more)]
    for word, text in _facts(info, machine):
        lines += textwrap.wrap(f"{word}: {text}", _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT + "  ")
    return lines


def _facts(info: StrategyInfo, machine: Machine) -> Iterator[tuple[str, str]]:
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
