"""An absent device: tensors with shapes and no bytes, the kernels that would run on it, and its accelerator.

This folder has everything that only the simulated world needs of torch and DeepSpeed. It is loaded only into simulating
processes, since it permanently replaces functions of torch and DeepSpeed.
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
    """Simulate a GPU: a device type, an accelerator for it, fused attention.

    `gpu` has the facts for the accelerator (accelerator.SimulatedGpu).
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
