"""The ranks of torch, as saves and loads of a checkpoint know them (zerobench.rank.loop.checkpoint_saves)."""

import torch
import torch.distributed as dist

from zerobench.rank.ledger.device import Device


class TorchPeers:
    """torch's process group, where there is one, and torch's device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        if dist.is_initialized():
            dist.barrier()

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        self._device.synchronize()

    def start_device_peak(self) -> int | None:
        """What torch's allocator has handed out on the GPU now; None on a CPU."""
        if not self._device.is_cuda:
            return None
        torch.cuda.reset_peak_memory_stats(self._device.torch_device)
        return torch.cuda.memory_allocated(self._device.torch_device)

    def device_peak(self) -> int | None:
        """The most that it had since."""
        return torch.cuda.max_memory_allocated(self._device.torch_device) if self._device.is_cuda else None
