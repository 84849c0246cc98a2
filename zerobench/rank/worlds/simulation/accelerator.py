"""DeepSpeed's accelerator for the simulated GPU, the counterpart of deepspeed/accelerator/cuda_accelerator.py.

The device is torch's PrivateUse1 under the name `simgpu`, so that tensors themselves distinguish device and host
memory. It answers like a CUDA device wherever the engine's path depends on it: streams exist, the device is not
synchronised with the host, host memory can be page-locked.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from zerobench.estimate.clock.trace import EventWait, tell
from zerobench.rank.worlds.simulation import streams
from zerobench.rank.worlds.simulation.device import DEVICE


def offer_streams(module: Any) -> None:
    """Add streams and events to the device's module in torch (torch.simgpu), for FSDP2."""
    module.Stream, module.Event = streams.Stream, streams.Event
    module.current_stream = streams.current
    module.stream = streams.entered


class SimulatedGpu(Protocol):
    """Facts of the GPU for the accelerator, and its notifications."""

    @property
    def capacity_bytes(self) -> int:
        """Size of its memory."""

    @property
    def devices_per_node(self) -> int:
        """Number of GPUs of a node."""

    def allocated_bytes(self) -> int:
        """Bytes of torch on it now."""

    def empty_cache(self) -> None:
        """Release torch's unused memory."""

    def pinned(self, tensor: torch.Tensor) -> None:
        """Mark a host tensor as page-locked."""


class SimulatedAccelerator(CPU_Accelerator):  # type: ignore[misc] # DeepSpeed publishes no types
    """Accelerator of a simulated GPU."""

    _torch_pins_host_memory = True

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self._name = DEVICE
        self._communication_backend_name = "instant"
        self._gpu = gpu
        self._pinned: WeakSet[torch.UntypedStorage] = WeakSet()  # an address would outlive its storage

    def is_synchronized_device(self) -> bool:
        """False: a GPU is not synchronised with the host."""
        return False

    def synchronize(self, _device_index: int | None = None) -> None:
        tell(EventWait(None, None))

    def use_host_timers(self) -> bool:
        """True: device events take no time here."""
        return True

    def device_name(self, device_index: int | None = None) -> str:
        """Name of the device in torch's spelling."""
        return DEVICE if device_index is None else f"{DEVICE}:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        return torch.device(DEVICE, device_index or 0)

    def current_device(self) -> int:
        return 0

    def current_device_name(self) -> str:
        return f"{DEVICE}:0"

    def device_count(self) -> int:
        """Devices of the node, from which DeepSpeed counts nodes (stage3.py, __avg_scatter_grads)."""
        return self._gpu.devices_per_node

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is on the device."""
        return tensor.device.type == DEVICE

    @property
    def Stream(self) -> Any:  # noqa: N802 -- DeepSpeed's name
        """Class of streams."""
        return streams.Stream

    @property
    def Event(self) -> Any:  # noqa: N802 -- DeepSpeed's name
        """Class of events."""
        return streams.Event

    def stream(self, stream: Any) -> Any:
        """Context in which a stream is current."""
        return streams.entered(stream)

    def current_stream(self, _device_index: int | None = None) -> Any:
        """Innermost entered stream."""
        return streams.current()

    def default_stream(self, _device_index: int | None = None) -> Any:
        """Stream that is current if none was entered."""
        return streams.DEFAULT

    def total_memory(self, _device_index: int | None = None) -> int:
        """Memory of the GPU."""
        return self._gpu.capacity_bytes

    def available_memory(self, _device_index: int | None = None) -> int:
        """Memory left by torch; DeepSpeed flattens on the host if it is too little (stage_1_and_2.py)."""
        return self._gpu.capacity_bytes - self._gpu.allocated_bytes()

    def memory_allocated(self, _device_index: int | None = None) -> int:
        """Memory of torch."""
        return self._gpu.allocated_bytes()

    def empty_cache(self) -> None:
        """Release free segments to the driver."""
        self._gpu.empty_cache()

    def is_fp16_supported(self) -> bool:
        """True for every GPU."""
        return True

    if hasattr(DeepSpeedAccelerator, "_torch_pin_memory"):
        pin_memory = DeepSpeedAccelerator.pin_memory
    else:  # DeepSpeed before 0.19.6, for benchmarks/versions

        def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
            """Copy into page-locked memory."""
            return self._torch_pin_memory(tensor)

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy into page-locked memory (at::native::_pin_memory)."""
        copy = torch.empty_like(tensor, device="cpu")
        return self._lock(copy)

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Any) -> torch.Tensor:
        buffer = tensor.new_empty(shape, device="cpu")
        return self._lock(buffer)

    def _lock(self, tensor: torch.Tensor) -> torch.Tensor:
        self._pinned.add(tensor.untyped_storage())
        self._gpu.pinned(tensor)
        return tensor

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage() in self._pinned


def _typed(dtype: torch.dtype) -> property:
    return property(lambda _self: partial(torch.tensor, dtype=dtype, device=DEVICE))


for _name, _dtype in {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.double,
    "FloatTensor": torch.float,
    "HalfTensor": torch.half,
    "IntTensor": torch.int,
    "LongTensor": torch.long,
}.items():
    setattr(SimulatedAccelerator, _name, _typed(_dtype))
