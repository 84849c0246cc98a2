"""A device that is not there: tensors with shapes and no bytes, the kernels that would run on it, and its accelerator.

Everything that the simulated world needs of torch and DeepSpeed and the real ones do not lies in this folder. It is
only ever loaded into a process that simulates: it replaces functions of torch and DeepSpeed for good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zerobench.rank.worlds.simulation.device import DEVICE

__all__ = ["DEVICE", "use_cpu", "use_gpu"]


def use_cpu() -> None:
    """Simulate the ranks of a CPU run: torch's own CPU device, DeepSpeed's own CPU accelerator, no kernels."""
    from zerobench.emulator.inside import kernels
    from zerobench.rank.worlds.simulation import shortcuts, tensors

    tensors.install()
    kernels.install()
    shortcuts.install()


def use_gpu(gpu: Any, count_flops: Callable[[int, bool], None], compute_capability: str | None = None) -> None:
    """Simulate a GPU: a device of its own, an accelerator that drives it, fused attention.

    `gpu` tells what the accelerator must know (accelerator.SimulatedGpu).
    """
    from deepspeed.accelerator import set_accelerator

    from zerobench.emulator.inside import kernels
    from zerobench.rank.worlds.simulation import attention, shortcuts, tensors
    from zerobench.rank.worlds.simulation.accelerator import SimulatedAccelerator, offer_streams

    offer_streams(getattr(torch, DEVICE))
    set_accelerator(SimulatedAccelerator(gpu))
    tensors.install()
    kernels.install()
    shortcuts.install()
    attention.install(count_flops, compute_capability)
    tensors.take_as_lists()
