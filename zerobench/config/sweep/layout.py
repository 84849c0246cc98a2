"""Ranks, nodes and ranks per node from `world_size`, `num_nodes` and `gpus_per_node`, each of them optional or `auto`.

A world size alone is laid out as on the machine, if it fits there. This also applies to predictions of this machine's
hardware: nodes and ranks per node are part of a trial, and a prediction is compared with the measurement of the same
layout. More ranks than fit are predicted on nodes of eight GPUs. If they are to be measured they stay on one node, and
the rule that refuses them reports how many ranks and GPUs that would be.
"""

from collections.abc import Mapping
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.axes.axes import LAYOUT
from zerobench.config.axes.axis_readers import AUTO
from zerobench.config.derived.machine import MAX_RANKS, Machine
from zerobench.config.hardware.usual_node import GPUS_PER_NODE
from zerobench.config.trial.trial import Evidence


def auto_ranks(axis: str, machine: Machine) -> int:
    """Meaning of `auto` for one axis of the layout: all GPUs."""
    counts = {"num_nodes": machine.num_nodes, "gpus_per_node": machine.ranks_per_node}
    return counts.get(axis, machine.num_nodes * machine.ranks_per_node)


def resolve_layout(point: Mapping[str, Any], machine: Machine) -> dict[str, int]:
    """World size, nodes and ranks per node of `point` on `machine`; without any of them, all of the machine.

    A world size alone fills one node if it fits there, else as few nodes as hold it in equal parts. Raises UserError
    for a world size that nodes or ranks per node do not divide, and for more than MAX_RANKS.
    """
    given = {axis: _known(axis, point[axis], machine) for axis in LAYOUT if point.get(axis) is not None}
    world, nodes, per_node = (given.get(axis) for axis in LAYOUT)
    if world is None and nodes is None and per_node is None:
        world = auto_ranks("world_size", machine)
    if world is None:
        nodes = nodes or 1
        per_node = per_node or machine.ranks_per_node
        world = nodes * per_node
    shown = ", ".join(f"{axis} {count}" for axis, count in given.items())
    if world > MAX_RANKS:
        raise UserError(f"{shown or 'all GPUs'}: {world} ranks; at most {MAX_RANKS}")
    if nodes is None:
        nodes = _nodes(world, per_node, machine, point["evidence"])
    if world % nodes or (per_node is not None and world != nodes * per_node and world >= per_node):
        raise UserError(f"{shown}: world_size must be num_nodes x gpus_per_node")
    return {"world_size": world, "num_nodes": nodes, "gpus_per_node": world // nodes}


def _known(axis: str, value: Any, machine: Machine) -> int:
    return auto_ranks(axis, machine) if value == AUTO else int(value)


def _nodes(world: int, per_node: int | None, machine: Machine, evidence: Evidence) -> int:
    """Nodes for `world` ranks: by the requested ranks per node, else by the rules in the module's docstring."""
    if per_node is not None:
        return max(1, world // per_node)
    fitting = (nodes for nodes in range(1, machine.num_nodes + 1) if world % nodes == 0)
    nodes = next((nodes for nodes in fitting if world // nodes <= machine.ranks_per_node), None)
    if nodes is not None:
        return nodes
    if evidence is Evidence.MEASURED or world <= machine.most_ranks_per_node:
        return 1
    return world // next(count for count in range(GPUS_PER_NODE, 0, -1) if world % count == 0)
