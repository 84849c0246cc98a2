"""The nodes of a run beside each other: how many there were, and where one is not like the others.

A run on nodes that differ in driver, GPUs or versions is no single measurement, and the slowest rank decides: so each
difference is one sentence that names the odd node. What differs on nodes of one kind is left out: names, variables,
and the few megabytes that firmware takes of their memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerobench.common.grouped import grouped
from zerobench.common.units import counted, format_bytes
from zerobench.records import store
from zerobench.report.figures.environment_facts import FACTS, Environment, at, gpu_links, gpu_names, text, versions
from zerobench.report.figures.notes import listed
from zerobench.report.words.column_units import plain

SAME_MEMORY = 0.01
"""Host memory that differs by less, as a fraction of it, is the same."""

Nodes = Mapping[str, Environment]
"""Environments of the nodes, by name."""


@dataclass(frozen=True)
class Difference:
    """A fact that is not the same on all nodes."""

    name: str
    nodes_by_value: Mapping[str, Sequence[str]]
    """The nodes that say the same, the fewest first."""

    @property
    def sentence(self) -> str:
        """`driver: 535.1 on node-7; 550.5 on the other 3`."""
        *odd, usual = self.nodes_by_value.items()
        parts = [f"{value} on {listed(nodes)}" for value, nodes in odd]
        value, nodes = usual
        where = f"the other {len(nodes):,}" if len(nodes) > 1 else listed(nodes)
        return f"{self.name}: {'; '.join([*parts, f'{value} on {where}'])}"


def node_lines(run: store.Run) -> list[str]:
    """Number of recorded nodes, and each thing in which they differ; none where none was. Safe for a terminal."""
    if not run.nodes:
        return []
    return [nodes_sentence(run), *(f"the nodes differ: {difference}" for difference in node_differences(run.nodes))]


def nodes_sentence(run: store.Run) -> str:
    """`2 nodes: node-1, node-2; begun from login-1`."""
    whence = None if run.submitted_from is None else text(at(run.submitted_from, "hostname"))
    count = len(run.nodes)
    sentence = f"{counted(count, 'node')}: {node_list(run.nodes)}"
    return sentence + (f"; launched from {whence}" if whence else "")


def node_list(nodes: Nodes) -> str:
    """The names of the nodes, the tail of many counted."""
    return listed([plain(name) for name in sorted(nodes)])


def node_differences(nodes: Nodes) -> list[str]:
    """A sentence for each fact in which the nodes differ, and for each node that could not be recorded."""
    lost = {name: text(at(node, "fault")) for name, node in sorted(nodes.items()) if "fault" in node}
    sentences = [f"{plain(name)} could not be recorded: {fault}" for name, fault in lost.items()]
    return [*sentences, *(difference.sentence for difference in differences(nodes))]


def differences(nodes: Nodes) -> Iterator[Difference]:
    """The facts in which the recorded nodes differ."""
    facts = {plain(name): _facts(node) for name, node in sorted(nodes.items()) if "fault" not in node}
    sizes = _alike({plain(name): at(node, "machine", "memory_bytes") for name, node in nodes.items()})
    names = dict.fromkeys(name for of_node in facts.values() for name in of_node)
    for name in [*names, "host memory"]:
        values = {
            node: (sizes.get(node) if name == "host memory" else of.get(name)) or "none" for node, of in facts.items()
        }
        by_value = grouped(values, values.__getitem__)
        if len(by_value) > 1:
            yield Difference(name, dict(sorted(by_value.items(), key=lambda item: len(item[1]))))


def _facts(node: Environment) -> dict[str, str | None]:
    single = {name: text(at(node, *path)) for name, path in FACTS.items() if name != "host"}
    return {"GPUs": gpu_names(node), "links between GPUs": gpu_links(node), **single, **dict(versions(node))}


def _alike(sizes: Mapping[str, object]) -> dict[str, str]:
    """Host memory as text, the same for sizes that hardly differ."""
    known = sorted((size, name) for name, size in sizes.items() if isinstance(size, int))
    first, texts = 0, {}
    for size, name in known:
        if size > first * (1 + SAME_MEMORY):
            first = size
        texts[name] = format_bytes(first, digits=1)
    return texts
