"""How many ranks lie where: from `world_size`, `num_nodes` and `gpus_per_node`, any of them `auto` or left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerobench.errors import UserError
from zerobench.spec.axes import AUTO, LAYOUT
from zerobench.spec.machine import Machine


def auto_ranks(axis: str, machine: Machine) -> int:
    """What `auto` means for one axis of the layout: all of the machine."""
    counts = {"num_nodes": machine.num_nodes, "gpus_per_node": machine.ranks_per_node}
    return counts.get(axis, machine.num_nodes * machine.ranks_per_node)


def resolve_layout(point: Mapping[str, Any], machine: Machine) -> dict[str, int]:
    """World size, nodes and ranks per node of `point`; without any of them, all of the machine.

    A world size alone fills one node if it fits there, else as few nodes as hold it in equal parts. Raises
    UserError for a world size that nodes or ranks per node do not divide.
    """
    given = {axis: _known(axis, point[axis], machine) for axis in LAYOUT if point.get(axis) is not None}
    world, nodes, per_node = (given.get(axis) for axis in LAYOUT)
    if world is None and nodes is None and per_node is None:
        world = auto_ranks("world_size", machine)
    if world is None:
        nodes = nodes or 1
        per_node = per_node or machine.ranks_per_node
        world = nodes * per_node
    if nodes is None:
        nodes = _fewest_nodes(world, per_node, machine)
    if world % nodes or (per_node is not None and world != nodes * per_node and world >= per_node):
        shown = ", ".join(f"{axis} {count}" for axis, count in given.items())
        raise UserError(f"{shown}: do not multiply; world_size is num_nodes x gpus_per_node")
    return {"world_size": world, "num_nodes": nodes, "gpus_per_node": world // nodes}


def _known(axis: str, value: Any, machine: Machine) -> int:
    return auto_ranks(axis, machine) if value == AUTO else int(value)


def _fewest_nodes(world: int, per_node: int | None, machine: Machine) -> int:
    """Nodes for `world` ranks: by the ranks per node asked for, else by what a node of the machine has."""
    if per_node is not None:
        return max(1, world // per_node)
    fitting = (nodes for nodes in range(1, machine.num_nodes + 1) if world % nodes == 0)
    return next((nodes for nodes in fitting if world // nodes <= machine.ranks_per_node), 1)
