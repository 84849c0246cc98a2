"""The least time that collectives take on links: bytes that must enter and leave a rank, and a node, over their rates.

For a message of S bytes on n ranks, between which only ranks pass messages, at least (n-1)/n S enter and leave a rank
(the mean over ranks, so the slowest has no less) for all-gather, reduce-scatter and all-to-all, and twice that for
all-reduce: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH",
section 4; NCCL tests, doc/PERFORMANCE.md. The latter gives S for broadcast and reduce from or to one root; calls whose
roots take turns need (n-1)/n S, and since roots are not recorded, that is taken.

A switch that copies and adds (NVLink SHARP) halves an all-reduce, since each byte enters and leaves once, and makes
all-gathers all but inbound and reduce-scatters all but outbound, so that the two can share a link. Hence directions are
added up apart, and the larger one counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zerobench.config.hardware.links import Links
from zerobench.estimate.clock.collectives import KindTraffic
from zerobench.estimate.clock.latency import latency_s

_INBOUND = {"all_gather", "broadcast"}
_OUTBOUND = {"reduce_scatter", "reduce"}
_POINT_TO_POINT = {"send", "recv"}
_SILENT = {"barrier"}


@dataclass(frozen=True)
class Flow:
    """Bytes that enter and leave a rank, or a node."""

    in_bytes: float = 0.0
    out_bytes: float = 0.0

    @property
    def slower_bytes(self) -> float:
        """A link carries both directions at once: the fuller one counts."""
        return max(self.in_bytes, self.out_bytes)

    def __add__(self, other: Flow) -> Flow:
        return Flow(self.in_bytes + other.in_bytes, self.out_bytes + other.out_bytes)


def flow(kind: str, size: int, message_bytes: float, *, switch_reduces: bool = False) -> Flow | None:
    """What enters and leaves each of `size` ranks (or nodes) at the least; None for a kind that is not known."""
    if size <= 1 or kind in _SILENT:
        return Flow()
    share, reduced = message_bytes * (size - 1) / size, message_bytes / size
    if kind == "all_reduce":
        moved = message_bytes if switch_reduces else 2 * share
        return Flow(moved, moved)
    if kind in _INBOUND:
        return Flow(share, reduced if switch_reduces else share)
    if kind in _OUTBOUND:
        return Flow(reduced if switch_reduces else share, share)
    if kind == "all_to_all":
        return Flow(share, share)
    if kind in _POINT_TO_POINT:
        return Flow(message_bytes, 0.0) if kind == "recv" else Flow(0.0, message_bytes)
    return None


def transfer_s(
    messages: Iterable[KindTraffic], gpus_per_node: int, links: Links, *, in_rings: bool = False
) -> float | None:
    """The least seconds in which `messages` can pass, all of them at once; None where a rate, or a kind, is not known.

    Where a record does not say which nodes a group lies on, one that a node can hold is taken to lie in one, and a
    larger one to fill nodes. Three things bind, and the slowest
    counts: what stays in the node goes over a rank's link; all that a rank sends goes over its link and its share of
    the network together; what crosses the edge of a node, once for all of its ranks, over the network of all of them.
    `in_rings`, as NCCL passes them, all that a rank sends goes over its link, to its neighbour or to the network card.
    """
    kept = [
        message
        for message in messages
        if message.message_bytes and message.group_size > 1 and message.kind not in _SILENT
    ]
    inside = [message for message in kept if nodes_of(message, gpus_per_node) == 1]
    across = [message for message in kept if nodes_of(message, gpus_per_node) > 1]
    reduces = links.link_reduces
    of_links, of_all = _rank_flow(kept if in_rings else inside, reduces), _rank_flow(kept, reduces)
    of_node = _node_flow(across, gpus_per_node)
    if of_links is None or of_all is None or of_node is None:
        return None
    link, network = links.link_gb_per_s, links.network_gb_per_s
    if (inside and link is None) or (across and network is None):
        return None
    times = [of_links.slower_bytes / (link * 1e9)] if link is not None else [0.0]
    if across and link is not None and network is not None:
        times.append(of_all.slower_bytes / ((link + network) * 1e9))
    if across and network is not None:
        times.append(of_node.slower_bytes / (network * 1e9 * gpus_per_node))
    return max(times)


def collective_s(message: KindTraffic, gpus_per_node: int, links: Links) -> float | None:
    """Seconds of all calls of `message`, one after another in NCCL's rings: their bytes and each one's latency."""
    moved_s = transfer_s([message], gpus_per_node, links, in_rings=True)
    each_s = latency_s(message.kind, message.group_size, nodes_of(message, gpus_per_node))
    return None if moved_s is None else moved_s + message.calls * each_s


def _rank_flow(messages: Iterable[KindTraffic], switch_reduces: bool) -> Flow | None:
    return total_flow(
        flow(message.kind, message.group_size, message.message_bytes, switch_reduces=switch_reduces)
        for message in messages
    )


def nodes_of(message: KindTraffic, gpus_per_node: int) -> int:
    """Nodes that the group of `message` lies on."""
    return message.num_nodes or -(-message.group_size // gpus_per_node)


def _node_flow(messages: Iterable[KindTraffic], gpus_per_node: int) -> Flow | None:
    """What crosses the edge of a node. A message to one rank may have stayed inside: its partner is not recorded.

    A group that has few ranks on each of its nodes (MiCS's replicas, ZeRO++'s second hop) has others beside it there.
    """
    flows = []
    for message in messages:
        nodes = nodes_of(message, gpus_per_node)
        # In an all-to-all each rank of a node has a message of its own for the ranks elsewhere.
        groups = max(1.0, gpus_per_node * nodes / message.group_size) if message.num_nodes else 1.0
        senders = gpus_per_node if message.kind == "all_to_all" else groups
        stays = message.kind in _POINT_TO_POINT
        size = message.message_bytes * senders
        flows.append(Flow() if stays else flow(message.kind, nodes, size))
    return total_flow(flows)


def total_flow(flows: Iterable[Flow | None]) -> Flow | None:
    """Their sum; None where one of them is not known."""
    total = Flow()
    for flow in flows:
        if flow is None:
            return None
        total += flow
    return total
