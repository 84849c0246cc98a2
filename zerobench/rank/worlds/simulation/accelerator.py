"""DeepSpeed's accelerator for the simulated GPU: what deepspeed/accelerator/cuda_accelerator.py is for a real one.

The device is torch's PrivateUse1 under the name `simgpu`, so that device and host memory are told apart by the tensors
themselves. It answers as a CUDA device does wherever the engine's path depends on it: streams exist, the device is not
synchronised with the host, host memory can be page-locked.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from zerobench.estimate.time.trace import EventWait, tell
from zerobench.rank.worlds.simulation import streams
from zerobench.rank.worlds.simulation.device import DEVICE


def offer_streams(module: Any) -> None:
    """Give the device's module in torch (torch.simgpu) what FSDP2 asks torch.cuda for: streams and events."""
    module.Stream, module.Event = streams.Stream, streams.Event
    module.current_stream = streams.current
    module.stream = streams.entered


class SimulatedGpu(Protocol):
    """What the accelerator must know of the GPU, and tell of it."""

    @property
    def capacity_bytes(self) -> int:
        """All of its memory."""

    @property
    def devices_per_node(self) -> int:
        """GPUs of a node."""

    def allocated_bytes(self) -> int:
        """What torch holds of it now."""

    def empty_cache(self) -> None:
        """Torch is asked to give back what it holds and does not use."""

    def pinned(self, tensor: torch.Tensor) -> None:
        """A host tensor is page-locked."""


class SimulatedAccelerator(CPU_Accelerator):  # type: ignore[misc] # DeepSpeed publishes no types
    """What drives a simulated GPU."""

    _torch_pins_host_memory = True

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__()
        self._name = DEVICE
        self._communication_backend_name = "instant"
        self._gpu = gpu
        self._pinned: WeakSet[torch.UntypedStorage] = WeakSet()  # an address would outlive what lay there

    def is_synchronized_device(self) -> bool:
        """A GPU is not."""
        return False

    def synchronize(self, _device_index: int | None = None) -> None:
        tell(EventWait(None, None))

    def use_host_timers(self) -> bool:
        """Device events take no time here."""
        return True

    def device_name(self, device_index: int | None = None) -> str:
        """As torch writes it."""
        return DEVICE if device_index is None else f"{DEVICE}:{device_index}"

    def device(self, device_index: int | None = None) -> Any:
        return torch.device(DEVICE, device_index or 0)

    def current_device(self) -> int:
        return 0

    def current_device_name(self) -> str:
        return f"{DEVICE}:0"

    def device_count(self) -> int:
        """Those of the node, which DeepSpeed counts nodes by (stage3.py, __avg_scatter_grads)."""
        return self._gpu.devices_per_node

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on the device."""
        return tensor.device.type == DEVICE

    @property
    def Stream(self) -> Any:  # noqa: N802 -- DeepSpeed's name
        """The class of streams."""
        return streams.Stream

    @property
    def Event(self) -> Any:  # noqa: N802 -- DeepSpeed's name
        """The class of events."""
        return streams.Event

    def stream(self, stream: Any) -> Any:
        """A context in which a stream is current."""
        return streams.entered(stream)

    def current_stream(self, _device_index: int | None = None) -> Any:
        """The innermost that was entered."""
        return streams.current()

    def default_stream(self, _device_index: int | None = None) -> Any:
        """The one that is current where none was entered."""
        return streams.DEFAULT

    def total_memory(self, _device_index: int | None = None) -> int:
        """The GPU's."""
        return self._gpu.capacity_bytes

    def available_memory(self, _device_index: int | None = None) -> int:
        """What torch has not taken; DeepSpeed flattens on the host where this is too little (stage_1_and_2.py)."""
        return self._gpu.capacity_bytes - self._gpu.allocated_bytes()

    def memory_allocated(self, _device_index: int | None = None) -> int:
        """What torch has taken."""
        return self._gpu.allocated_bytes()

    def empty_cache(self) -> None:
        """Free segments go back to the driver."""
        self._gpu.empty_cache()

    def is_fp16_supported(self) -> bool:
        """Every GPU's."""
        return True

    if hasattr(DeepSpeedAccelerator, "_torch_pin_memory"):
        pin_memory = DeepSpeedAccelerator.pin_memory
    else:  # DeepSpeed before 0.19.6, which benchmarks/versions plays too

        def pin_memory(self, tensor: torch.Tensor, align_bytes: int = 1) -> torch.Tensor:
            """A copy in page-locked memory."""
            return self._torch_pin_memory(tensor)

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in page-locked memory (at::native::_pin_memory)."""
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
