"""Hardware of a sweep's point: this machine, or, for predictions, possibly another.

Measured and solo trials run on this machine. An emulated, simulated or formula trial is for the GPU that it names;
`auto` is this machine's own, and null the CPU. This machine determines the meaning of `auto`, the layout of ranks over
nodes, and which of a sweep's axes (`on_cpu`) apply, but only for its own hardware. Otherwise a node of eight GPUs
stands in, so that a plan for absent GPUs is the same on every machine.

Each point is decided by itself, independent of the rest of the sweep, so that a prediction made today matches a later
measurement in another run on this machine.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.axes.axis_readers import AUTO
from zerobench.config.derived.machine import Accelerator, Machine
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
