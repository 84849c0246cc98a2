"""What worlds without a device have in common: nothing is computed, nobody else is there, no driver can be asked."""

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
    """Alone, as rank r of N, on a device of the catalogue that is not there."""

    trains = False
    is_alone = True

    @property
    def attention(self) -> Attention:
        """The package flash-attn has kernels of its own; torch's own flash kernel keeps the same tensors."""
        flash = self.trial.attention is Attention.FLASH_ATTENTION_2
        return Attention.SDPA if flash else self.trial.attention

    def context_memory(self) -> tuple[ContextMemory | None, list[str]]:
        """What others have measured of the GPU, or a calibration file; and what a reader must know of the world."""
        gpu = self.trial.prediction.gpu
        if gpu is None:
            return None, []
        overhead = overhead_of(gpu, self.trial.world_size)
        context = ContextMemory(
            before_bytes=0, context_bytes=overhead.context_bytes, collectives_bytes=overhead.collectives_bytes
        )
        return context, [overhead.source, *self.notes()]

    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        return []

    def reader(self, device: Device) -> DeviceReader | None:
        """There is no driver."""
        return None

    def nvme(self, folder: str | None, rank: int) -> NvmeAccount:
        """Counts what the swappers hand to their handle."""
        return NvmeAccount(folder, rank, kernels.read_block_io, kernels.swap_file_bytes)

    def generator(self, device: torch.device, seed: int) -> torch.Generator | None:
        """Nothing is drawn."""
        return None
