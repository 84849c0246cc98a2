"""Hardware of a sweep's point, this machine or, for predictions, possibly another, and its layout of ranks.

Measured and solo trials run on this machine. An emulated, simulated or formula trial is for the GPU that it names;
`auto` is this machine's own, and null the CPU. This machine determines the meaning of `auto`, the layout of ranks over
nodes, and which of a sweep's axes (`on_cpu`) apply, but only for its own hardware. Otherwise a node of eight GPUs
stands in, so that a plan for absent GPUs is the same on every machine.

Each point is decided by itself, independent of the rest of the sweep, so that a prediction made today matches a later
measurement in another run on this machine.

Of `world_size`, `num_nodes` and `gpus_per_node` each is optional or `auto`. A world size alone is laid out as on the
machine, if it fits there. This also applies to predictions of this machine's hardware: nodes and ranks per node are
part of a trial, and a prediction is compared with the measurement of the same layout. More ranks than fit are predicted
on nodes of eight GPUs. If they are to be measured they stay on one node, and the rule that refuses them reports how
many ranks and GPUs that would be.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.axes.axes import LAYOUT
from zerobench.config.axes.axis_readers import AUTO
from zerobench.config.derived.machine import MAX_RANKS, Accelerator, Machine
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.usual_node import GPUS_PER_NODE
from zerobench.config.trial.plain import one_line
from zerobench.config.trial.trial import Evidence


class Targets:
    """Hardware of a sweep's points, for one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        elsewhere = {"num_nodes": 1, "gpu_names": (), "device_memory_bytes": None}
        node = machine.model_copy(
            update=elsewhere | {"accelerator": Accelerator.CUDA, "num_gpus": GPUS_PER_NODE, "host_memory_bytes": None}
        )
        cpu = machine.model_copy(update=elsewhere | {"accelerator": Accelerator.CPU, "num_gpus": 0})
        self._elsewhere = {Accelerator.CUDA: node, Accelerator.CPU: cpu}

    @cached_property
    def own_gpu(self) -> str | None:
        """Catalogue name of this machine's GPU; None without GPUs, or if it is not catalogued."""
        gpus = [find_gpu(name) for name in self.machine.gpu_names[:1]] if self._has_gpus else []
        return next((gpu.name for gpu in gpus if gpu is not None), None)

    @property
    def _has_gpus(self) -> bool:
        return self.machine.accelerator is Accelerator.CUDA

    def prediction(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """`gpu` and `rank` of `point`: None if they do not apply to its evidence, `auto` resolved.

        Raises UserError for `auto` on a machine whose GPU is not catalogued.
        """
        evidence: Evidence = point["evidence"]
        gpu = None if evidence.needs_device else point["gpu"]
        return {
            "gpu": self._auto_gpu(evidence) if gpu == AUTO else gpu,
            "rank": point["rank"] if evidence.plays_one_rank else None,
        }

    def machine_of(self, point: Mapping[str, Any]) -> Machine:
        """Machine for which `point`, with its prediction resolved, is laid out."""
        evidence: Evidence = point["evidence"]
        if evidence.needs_device or (point["gpu"] is None and not self._has_gpus):
            return self.machine
        if point["gpu"] is None:
            return self._elsewhere[Accelerator.CPU]
        return self.machine if point["gpu"] == self.own_gpu else self._elsewhere[Accelerator.CUDA]

    def _auto_gpu(self, evidence: Evidence) -> str | None:
        if not self._has_gpus or self.own_gpu is not None:
            return self.own_gpu
        names = ", ".join(dict.fromkeys(self.machine.gpu_names)) or "of unknown name"
        raise UserError(
            one_line(
                f"gpu: auto: evidence {evidence}: this machine's GPU, {names}, is not in the hardware "
                "catalogue; give one (gpu: h200), or add yours to the file in ZEROBENCH_HARDWARE"
            )
        )


def auto_ranks(axis: str, machine: Machine) -> int:
    """Meaning of `auto` for one axis of the layout: all GPUs."""
    counts = {"num_nodes": machine.num_nodes, "gpus_per_node": machine.ranks_per_node}
    return counts.get(axis, machine.num_nodes * machine.ranks_per_node)


def resolve_layout(point: Mapping[str, Any], machine: Machine) -> dict[str, int]:
    """World size, nodes and ranks per node of `point` on `machine`; without any of them, all of the machine.

    A world size alone fills one node if it fits there, else as few nodes as hold it in equal parts. Raises UserError
    for a world size that nodes or ranks per node do not divide, and for more than MAX_RANKS.
    """
    given = {
        axis: auto_ranks(axis, machine) if point[axis] == AUTO else int(point[axis])
        for axis in LAYOUT
        if point.get(axis) is not None
    }
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
