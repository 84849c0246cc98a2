"""Records of one node among a trial's, and the node's name.

A node is its index within the trial, never its hostname: two nodes may share one, and one may call itself wrongly.
Older records know no index; they are joined by hostname.
"""

from collections.abc import Iterable
from pathlib import Path

from zerobench.records.folder import TrialFolder
from zerobench.records.records import HostSummary, NvmlSummary, RankRecord
from zerobench.records.trials import Trial

OfNode = RankRecord | NvmlSummary | HostSummary
"""A record that says which node it is of."""


def same_node(record: OfNode, other: OfNode) -> bool:
    """True if two records of one trial are of the same node."""
    if record.node is None or other.node is None:
        return record.hostname == other.hostname
    return record.node == other.node


def ranks_of(ranks: Iterable[RankRecord], node: OfNode) -> list[RankRecord]:
    """The ranks that ran on the node that `node` is of."""
    return [rank for rank in ranks if same_node(rank, node)]


def samples_file(folder: TrialFolder, of: OfNode) -> Path:
    """Path of the NVML samples of the node that `of` is of."""
    return folder.nvml_samples(of.hostname if of.node is None else of.node)


def node_name(trial: Trial, of: OfNode) -> str:
    """The name under which the node was given to the trial, else its hostname; with its index where that is another's.

    Not made safe for a terminal.
    """
    names, index = trial.record.nodes, of.node
    if index is None:
        return of.hostname
    if 0 <= index < len(names):
        name = names[index]
        return name if names.count(name) == 1 else f"{name} (node {index})"
    others: list[OfNode] = [*trial.ranks, *trial.record.nvml]
    is_shared = any(other.hostname == of.hostname and other.node not in {None, index} for other in others)
    return f"{of.hostname} (node {index})" if is_shared else of.hostname
