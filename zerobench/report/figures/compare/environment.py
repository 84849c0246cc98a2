"""Environments of two runs, fact beside fact: the first suspects of a difference, and hardware that spoils it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zerobench.common.units import format_bytes
from zerobench.report.figures.compare.sides import Side
from zerobench.report.figures.environment_facts import FACTS, at, commit, gpu_names, text, versions
from zerobench.report.figures.node_facts import node_differences
from zerobench.report.words.column_units import plain

_HARDWARE = ("GPUs", "devices of ranks", "processor", "cores", "host memory")
"""Figures of two runs that differ in one of them say little of software."""


@dataclass(frozen=True)
class Fact:
    """One thing that was true of both runs, or differs between them."""

    name: str
    base: str | None
    new: str | None
    """None: not recorded."""

    @property
    def differs(self) -> bool:
        """True if the runs have different values."""
        return self.base != self.new


def facts(base: Side, new: Side) -> list[Fact]:
    """All that either run recorded of its environment, by name."""
    left, right = _facts(base), _facts(new)
    names = dict.fromkeys([*left, *right])
    return [Fact(name, left.get(name), right.get(name)) for name in names]


def hardware_warnings(facts: Sequence[Fact]) -> list[str]:
    """A sentence for each difference in hardware."""
    return [
        f"different hardware: {fact.name}: {fact.base or 'not recorded'} in BASE, {fact.new or 'not recorded'} in NEW"
        for fact in facts
        if fact.differs and fact.name in _HARDWARE and fact.base is not None and fact.new is not None
    ]


def _facts(side: Side) -> dict[str, str | None]:
    environment = side.run.environment
    facts = dict(versions(environment))
    facts |= {name: text(at(environment, *path)) for name, path in FACTS.items()}
    facts["GPUs"] = gpu_names(environment)
    facts["devices of ranks"] = plain(", ".join(sorted(side.devices))) or None
    memory = at(environment, "machine", "memory_bytes")
    facts["host memory"] = format_bytes(memory, digits=1) if isinstance(memory, int) else None
    if nodes := side.run.nodes:
        facts |= {"nodes": f"{len(nodes):,}", "nodes differ in": "; ".join(node_differences(nodes)) or None}
    facts["zerobench commit"] = commit(at(environment, "git", "zerobench"))
    variables = at(environment, "variables")
    named = variables.items() if isinstance(variables, Mapping) else ()
    return facts | {f"${plain(str(name))}": text(value) for name, value in named}
