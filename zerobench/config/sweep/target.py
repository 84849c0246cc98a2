"""The hardware that a point of a sweep is about: the machine at hand, or, for predictions, one that is not there.

Measured and solo trials run on this machine. An emulated, simulated or formula trial is about the GPU that it names;
`auto` is this machine's own, and null the CPU. Only where that hardware is this machine's does the machine have a say:
in what `auto` means, in how ranks are laid out over nodes, in which of a sweep's axes (`on_cpu`) count. Elsewhere a
node of eight GPUs stands in, so that a plan for GPUs that are not here comes out the same on every machine.

It is decided point by point and never by what else the sweep holds, so that a prediction made today joins a
measurement made tomorrow in another run on this machine.
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
    """Finds what the points of a sweep are about, for one machine at hand."""

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
        """Catalogue name of this machine's GPU; None for a machine without GPUs, and for one that is not catalogued."""
        gpus = [find_gpu(name) for name in self.machine.gpu_names[:1]] if self._has_gpus else []
        return next((gpu.name for gpu in gpus if gpu is not None), None)

    @property
    def _has_gpus(self) -> bool:
        return self.machine.accelerator is Accelerator.CUDA

    def prediction(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """`gpu` and `rank` of `point`: None where they mean nothing to its evidence, `auto` resolved.

        Raises UserError for `auto` on a machine whose GPU is not catalogued.
        """
        evidence: Evidence = point["evidence"]
        gpu = None if evidence.needs_device else point["gpu"]
        return {
            "gpu": self._auto_gpu(evidence) if gpu == AUTO else gpu,
            "rank": point["rank"] if evidence.plays_one_rank else None,
        }

    def machine_of(self, point: Mapping[str, Any]) -> Machine:
        """The machine that `point`, its prediction resolved, is laid out for."""
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
