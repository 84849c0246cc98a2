"""The door through which every world comes: the device, the process group, and what the rank can know in it.

The training loop, the strategies and the ledger are the same in each world; what differs is collected here, so that
nothing else asks which world it is in.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch

from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.trial.trial import Attention, TrialSpec
from zerobench.emulator.gpu import VARIABLE
from zerobench.rank.ledger.cuda import AllocatorTotals
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.recorder import DeviceRows, NvmeAccount
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.rank.ledger.traffic import Traffic
from zerobench.rank.nvml.nvml import DeviceReader
from zerobench.rank.training.data import micro_batches
from zerobench.rank.training.loading import mapped_files_left_out
from zerobench.rank.training.weights import seeded
from zerobench.records.progress import Rank
from zerobench.records.records import ContextMemory


class World(ABC):
    """The world under one rank of one trial."""

    trains = True
    """Whether values exist, so that there are losses and times."""

    is_alone = False
    """Whether the other ranks are not there, so that nobody waits for them."""

    end: Callable[[BaseException], int] | None = None
    """Keeps the record of a rank that an exception has ended; the exit status. For where it cannot be raised."""

    def __init__(self, trial: TrialSpec) -> None:
        self.trial = trial
        self.traffic = Traffic()

    @property
    def attention(self) -> Attention:
        """The implementation that the model is built with."""
        return self.trial.attention

    @abstractmethod
    def open_device(self, rank: Rank) -> Device:
        """The device that this rank trains on."""

    @abstractmethod
    def join(self, rank: Rank, device: Device) -> None:
        """Start the process group, and let its library take what it takes at its first collective."""

    def context_memory(self) -> tuple[ContextMemory | None, list[str]]:
        """Device memory outside torch, where the world knows it without a driver, and where the figures are from; and
        that no value is computed where the GPU is an emulated one.
        """
        return None, [no_values()] if VARIABLE in os.environ else []

    def outside_torch(self) -> ContextMemory | None:
        """The same at the trial's end, with the communicators that its engine made; None where nobody can tell."""
        return None

    def active(self) -> AbstractContextManager[None]:
        """The context in which model, engine and steps live."""
        return nullcontext()

    def walk(self) -> Iterable[NamedTensor]:
        """Tensors that the world itself holds, with what they are."""
        return ()

    def device_totals(self) -> AllocatorTotals | None:
        """The allocator's totals of the phase under way, where it is a model; None where the device tells them."""
        return None

    def reader(self, device: Device) -> DeviceReader | None:
        """The driver's view of the device; None where there is no driver."""
        return DeviceReader.open(device.uuid) if device.is_cuda else None

    def counter(self, observe: Callable[[], object]) -> StorageCounter:
        """What counts storages in this world."""
        return StorageCounter(observe)

    def device_rows(self, device: Device, reader: DeviceReader | None) -> DeviceRows | None:
        """What notes the allocator's figures at the end of each phase; None where there is no allocator."""
        return DeviceRows(device, reader) if device.is_cuda else None

    def nvme(self, folder: str | None, rank: int) -> NvmeAccount:
        """What accounts for swapping."""
        return NvmeAccount(folder, rank)

    def micro_batches(self, rank: Rank, vocab_size: int) -> Iterator[torch.Tensor]:
        """Tokens of this rank, int64 [micro_batch_size, sequence_length], on the host."""
        return micro_batches(self.trial, rank.rank, len(plan_steps(self.trial)), vocab_size)

    def mean_over_ranks(self, losses: torch.Tensor, num_ranks: int) -> list[float]:
        """Losses averaged over the `num_ranks` that have some, zeros of the others; none where they mean nothing."""
        return []

    def reads_files(self, counter: StorageCounter) -> AbstractContextManager[None]:
        """The context in which weights are read from mapped files, whose pages are not to be counted."""
        return mapped_files_left_out(counter)

    def generator(self, device: torch.device, seed: int) -> torch.Generator | None:
        """A seeded generator for initial weights; None where nothing is drawn."""
        return seeded(device, seed)

    def settle(self) -> None:  # noqa: B027 -- collectives that complete at once hold nothing
        """Let the collectives' library let go of what it is done with, before memory is accounted for."""

    def leave(self) -> None:  # noqa: B027 -- alone there is nobody to wait for
        """End together with the others."""


def no_values() -> str:
    """What a reader of an emulated rank's figures must know."""
    return (
        f"emulated: torch {torch.__version__} built for CUDA {torch.version.cuda}; no values are "
        "computed: no losses, no times"
    )
