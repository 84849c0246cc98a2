"""torch's ranks, for saves and loads of a checkpoint (zerobench.rank.loop.checkpoint_saves)."""

import torch
import torch.distributed as dist

from zerobench.rank.ledger.device import Device


class TorchPeers:
    """torch's process group, if there is one, and torch's device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def barrier(self) -> None:
        """Wait for all ranks."""
        if dist.is_initialized():
            dist.barrier()

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        self._device.synchronize()

    def start_device_peak(self) -> int | None:
        """Reset the peak of torch's allocator; return the bytes allocated on the GPU now, None on a CPU."""
        if not self._device.is_cuda:
            return None
        torch.cuda.reset_peak_memory_stats(self._device.torch_device)
        return torch.cuda.memory_allocated(self._device.torch_device)

    def device_peak(self) -> int | None:
        """Most bytes allocated since then."""
        return torch.cuda.max_memory_allocated(self._device.torch_device) if self._device.is_cuda else None
