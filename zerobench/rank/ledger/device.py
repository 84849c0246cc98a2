"""The training device of this rank: the few calls that differ between CUDA and CPU."""

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
"""Of addresses: pages that nobody writes to take no memory."""


@dataclass
class Device:
    """The device that this rank trains on."""

    torch_device: torch.device
    name: str
    uuid: str | None
    backend: str
    """Collectives library of torch.distributed: `nccl` or `gloo`."""
    capacity_bytes: int | None = None
    """Of its memory; None on a CPU."""
    last_refusal: dict[str, int] = field(default_factory=dict)
    """What the allocator was asked for and had free when it last refused."""
    held: Callable[[], Holdings | None] = lambda: None
    """Asked at a refusal: what tensors hold then."""
    host_standing: Callable[[], HostStanding | None] = lambda: None
    """Asked where the host's memory was refused: what is held of it."""
    snapshot: Path | None = None
    """Where torch's snapshot of the allocator goes at a refusal; None: nowhere."""
    last_standing: Standing | None = None
    """What stood when it last refused."""
    _room: mmap | None = None

    @property
    def is_cuda(self) -> bool:
        """Whether this is a CUDA device."""
        return self.torch_device.type == "cuda"

    def synchronize(self) -> None:
        """Wait until the device has done what it was asked."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch_device)

    def memory_bytes(self) -> int | None:
        """Bytes that torch's allocator has given out now; None on CPU, where only a tracker knows."""
        return torch.cuda.memory_allocated(self.torch_device) if self.is_cuda else None

    def watch_refusals(self) -> None:
        """Let the CUDA allocator tell the exact figures of an out-of-memory error, and keep room to account for one."""
        self._room = mmap(-1, _ROOM_BYTES)
        if not self.is_cuda:
            return

        def refused(_device: int, asked: int, _total: int, free: int) -> None:
            self.last_refusal.update(bytes_asked=int(asked), bytes_free=int(free))
            self._look_around()

        torch._C._cuda_attach_out_of_memory_observer(refused)  # type: ignore[attr-defined] # absent from the CPU build

    def stood_on_host(self) -> HostStanding | None:
        """What is held of the host that refused, told in the room that was kept for it: the telling allocates too."""
        self._room = None
        return self.host_standing()

    def _look_around(self) -> None:
        """Take down what stands, and keep torch's snapshot; nothing of it may hide what torch is about to say."""
        try:
            self.last_standing = standing(self.torch_device, self.held())
            if self.snapshot is not None:
                torch.cuda.memory._dump_snapshot(str(self.snapshot))
        except Exception as error:  # noqa: BLE001 -- see above
            warnings.warn(f"zerobench could not list what is allocated: {error}", stacklevel=2)


def choose_device(local_rank: int) -> Device:
    """The GPU of this local rank, or the CPU where there is none or DS_ACCELERATOR says cpu.

    It is not made the current one yet: since CUDA 12 that makes its context, whose memory is to be read.
    Raises RuntimeError: a GPU was promised and torch finds none.
    """
    if os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.is_available():
        return describe_device(torch.device("cuda", local_rank))
    if NEEDS_GPU_VARIABLE in os.environ:
        built = f"torch {torch.__version__}, built for CUDA {torch.version.cuda or '(none)'}"
        raise RuntimeError(f"this rank needs a GPU, but {built}, finds none: no driver, or the wrong build")
    return describe_device(torch.device("cpu"))


def describe_device(device: torch.device) -> Device:
    """What `device`, a GPU or the CPU, is called, and the collectives library that goes with it."""
    if device.type != "cuda":
        return Device(device, processor_name() or "cpu", None, "gloo")
    properties: Any = torch.cuda.get_device_properties(device)
    return Device(device, properties.name, f"GPU-{properties.uuid}", "nccl", properties.total_memory)


class Clock:
    """Times of phases: CUDA events on the stream, so that timing does not wait for the device; the host clock on CPU.

    Reading an event before the device has reached it would block, so durations are read after the step's end.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def mark(self) -> Any:
        """A point in time on the device's own line of work."""
        if not self._device.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks; call after synchronize."""
        if not self._device.is_cuda:
            return float(end - start)
        return float(start.elapsed_time(end)) / 1000.0
