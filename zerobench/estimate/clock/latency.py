"""Seconds that a collective takes however few its bytes: NCCL's own model of its ring and tree.

NCCL 2.18, src/graph/tuning.cc: `baseLat` and `hwLat` of the protocol for large messages (Simple). A ring passes on once
for each other rank, and as often as there are other nodes it does so over the network; an all-reduce goes round twice,
or up and down a tree where that is shorter.
"""

from __future__ import annotations

import math

_RING_S, _LINK_HOP_S, _NETWORK_HOP_S = 8.4e-6, 3.4e-6, 14.0e-6
_TREE_S, _TREE_LINK_HOP_S, _TREE_NETWORK_HOP_S = 8.4e-6, 4.0e-6, 14.0e-6


def latency_s(kind: str, ranks: int, nodes: int) -> float:
    """Of one call among `ranks` ranks on `nodes` nodes, by kind as in zerobench.records.records.CollectiveTraffic."""
    if ranks <= 1:
        return 0.0
    if kind in {"send", "recv"}:
        return _RING_S + (_NETWORK_HOP_S if nodes > 1 else _LINK_HOP_S)
    around = (ranks - nodes) * _LINK_HOP_S + (nodes - 1) * _NETWORK_HOP_S
    if kind != "all_reduce":
        return _RING_S + around
    deep = (ranks / nodes - 1) * _TREE_LINK_HOP_S + math.ceil(math.log2(nodes)) * _TREE_NETWORK_HOP_S
    return min(_RING_S + 2 * around, _TREE_S + 2 * deep)
