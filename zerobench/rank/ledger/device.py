"""The training device of this rank: calls that differ between CUDA and CPU."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Any

import torch

from zerobench.common.processor import processor_name
from zerobench.rank.ledger.held import Holdings, standing
from zerobench.records.folder import NEEDS_GPU_VARIABLE
from zerobench.records.records import HostStanding, Standing

_ROOM_BYTES = 32 << 20
"""Address space, not memory: pages that are never written take none."""


@dataclass
class Device:
    """The device that this rank trains on."""

    torch_device: torch.device
    name: str
    uuid: str | None
    backend: str
    """Collectives library of torch.distributed: `nccl` or `gloo`."""
    capacity_bytes: int | None = None
    """Size of the device's memory; None on a CPU."""
    last_refusal: dict[str, int] = field(default_factory=dict)
    """Bytes requested and bytes free at the allocator's last refusal."""
    held: Callable[[], Holdings | None] = lambda: None
    """Called at a refusal: lists the memory of live tensors."""
    host_standing: Callable[[], HostStanding | None] = lambda: None
    """Called when host memory was refused: lists its use."""
    snapshot: Path | None = None
    """File for torch's snapshot of the allocator at a refusal; None for no snapshot."""
    last_standing: Standing | None = None
    """Use of the device at the last refusal."""
    _room: mmap | None = None

    @property
    def is_cuda(self) -> bool:
        """True for a CUDA device."""
        return self.torch_device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch_device)

    def memory_bytes(self) -> int | None:
        """Bytes allocated by torch now; None on a CPU, where only a tracker counts them."""
        return torch.cuda.memory_allocated(self.torch_device) if self.is_cuda else None

    def watch_refusals(self) -> None:
        """Record the exact figures of CUDA out-of-memory errors, and reserve room to account for one."""
        self._room = mmap(-1, _ROOM_BYTES)
        if not self.is_cuda:
            return

        def refused(_device: int, asked: int, _total: int, free: int) -> None:
            self.last_refusal.update(bytes_asked=int(asked), bytes_free=int(free))
            self._look_around()

        torch._C._cuda_attach_out_of_memory_observer(refused)  # type: ignore[attr-defined] # absent from the CPU build

    def stood_on_host(self) -> HostStanding | None:
        """List the use of host memory after a refusal; frees the reserved room first, since listing allocates too."""
        self._room = None
        return self.host_standing()

    def _look_around(self) -> None:
        """Record the use of the device and torch's snapshot; no error here may hide the one that torch will raise."""
        try:
            self.last_standing = standing(self.torch_device, self.held())
            if self.snapshot is not None:
                torch.cuda.memory._dump_snapshot(str(self.snapshot))
        except Exception as error:  # noqa: BLE001 -- see above
            warnings.warn(f"zerobench could not list what is allocated: {error}", stacklevel=2)


def choose_device(local_rank: int) -> Device:
    """Choose the GPU of this local rank, or the CPU if there is none or DS_ACCELERATOR is cpu.

    It does not become the current device yet: since CUDA 12 that creates its context, whose memory is to be measured.
    Raises RuntimeError if a GPU was promised and torch finds none.
    """
    if os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.is_available():
        return describe_device(torch.device("cuda", local_rank))
    if NEEDS_GPU_VARIABLE in os.environ:
        built = f"torch {torch.__version__}, built for CUDA {torch.version.cuda or '(none)'}"
        raise RuntimeError(f"this rank needs a GPU, but {built}, finds none: no driver, or the wrong build")
    return describe_device(torch.device("cpu"))


def describe_device(device: torch.device) -> Device:
    """Describe `device`, a GPU or the CPU: its name, and the collectives library that goes with it."""
    if device.type != "cuda":
        return Device(device, processor_name() or "cpu", None, "gloo")
    properties: Any = torch.cuda.get_device_properties(device)
    return Device(device, properties.name, f"GPU-{properties.uuid}", "nccl", properties.total_memory)


class Clock:
    """Times phases with CUDA events on the stream, so that timing does not wait for the device, or the host clock.

    Reading an event before the device has reached it would block, so durations are read after the step.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def mark(self) -> Any:
        """Mark a point in time on the current stream."""
        if not self._device.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks; call after `synchronize`."""
        if not self._device.is_cuda:
            return float(end - start)
        return float(start.elapsed_time(end)) / 1000.0
