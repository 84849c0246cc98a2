"""Common part of worlds without a device: no values, no other ranks, no driver."""

import torch

from zerobench.config.hardware.overheads import overhead_of
from zerobench.config.trial.trial import Attention
from zerobench.emulator.inside import kernels
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.recorder import NvmeAccount
from zerobench.rank.nvml.nvml import DeviceReader
from zerobench.rank.worlds.base import World
from zerobench.records.records import ContextMemory


class DevicelessWorld(World):
    """Alone, as rank r of N, on an absent device of the catalogue."""

    trains = False
    is_alone = True

    @property
    def attention(self) -> Attention:
        """SDPA instead of the package flash-attn, since torch's own flash kernel keeps the same tensors."""
        flash = self.trial.attention is Attention.FLASH_ATTENTION_2
        return Attention.SDPA if flash else self.trial.attention

    def context_memory(self) -> tuple[ContextMemory | None, list[str]]:
        """Published or calibrated context memory of the GPU, and notes on the world."""
        gpu = self.trial.prediction.gpu
        if gpu is None:
            return None, []
        overhead = overhead_of(gpu, self.trial.world_size)
        context = ContextMemory(
            before_bytes=0, context_bytes=overhead.context_bytes, collectives_bytes=overhead.collectives_bytes
        )
        return context, [overhead.source, *self.notes()]

    def notes(self) -> list[str]:
        """Notes for readers of the figures."""
        return []

    def reader(self, device: Device) -> DeviceReader | None:
        """None: there is no driver."""
        return None

    def nvme(self, folder: str | None, rank: int) -> NvmeAccount:
        """Make an account that counts bytes passed to the swappers' handle."""
        return NvmeAccount(folder, rank, kernels.read_block_io, kernels.swap_file_bytes)

    def generator(self, device: torch.device, seed: int) -> torch.Generator | None:
        """None: nothing is drawn."""
        return None
