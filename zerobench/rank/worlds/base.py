"""Interface of every world: device, process group, and the facts that a rank can know in it.

Training loop, strategies and ledger are the same in each world; all differences are collected here, so that no other
code asks which world it is in.
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
    """True if values exist, so that there are losses and times."""

    is_alone = False
    """True if the other ranks are absent, so that there is no waiting for them."""

    end: Callable[[BaseException], int] | None = None
    """Writes the record of a rank that ends with an exception that cannot be raised; returns the exit status."""

    def __init__(self, trial: TrialSpec) -> None:
        self.trial = trial
        self.traffic = Traffic()

    @property
    def attention(self) -> Attention:
        """Attention implementation of the model."""
        return self.trial.attention

    @abstractmethod
    def open_device(self, rank: Rank) -> Device:
        """Open the training device of this rank."""

    @abstractmethod
    def join(self, rank: Rank, device: Device) -> None:
        """Start the process group, and let its library allocate its buffers with a first collective."""

    def context_memory(self) -> tuple[ContextMemory | None, list[str]]:
        """Device memory outside torch, if the world knows it without a driver, and notes: the source of the figures,
        and for an emulated GPU that no values are computed.
        """
        return None, [no_values()] if VARIABLE in os.environ else []

    def outside_torch(self) -> ContextMemory | None:
        """Memory outside torch at the end of the trial, including the engine's communicators; None if unknown."""
        return None

    def active(self) -> AbstractContextManager[None]:
        """Context of model, engine and steps."""
        return nullcontext()

    def walk(self) -> Iterable[NamedTensor]:
        """Tensors of the world itself, with their categories."""
        return ()

    def device_totals(self) -> AllocatorTotals | None:
        """Totals of the current phase if the allocator is a model; None if the device reports them."""
        return None

    def reader(self, device: Device) -> DeviceReader | None:
        """Reader of the device's driver; None without a driver."""
        return DeviceReader.open(device.uuid) if device.is_cuda else None

    def counter(self, observe: Callable[[], object]) -> StorageCounter:
        """Make the counter of storages of this world."""
        return StorageCounter(observe)

    def device_rows(self, device: Device, reader: DeviceReader | None) -> DeviceRows | None:
        """Recorder of the allocator's figures at the end of each phase; None without an allocator."""
        return DeviceRows(device, reader) if device.is_cuda else None

    def nvme(self, folder: str | None, rank: int) -> NvmeAccount:
        """Make the account of swapping."""
        return NvmeAccount(folder, rank)

    def micro_batches(self, rank: Rank, vocab_size: int) -> Iterator[torch.Tensor]:
        """Tokens of this rank, int64 [micro_batch_size, sequence_length], on the host."""
        return micro_batches(self.trial, rank.rank, len(plan_steps(self.trial)), vocab_size)

    def mean_over_ranks(self, losses: torch.Tensor, num_ranks: int) -> list[float]:
        """Average losses over the `num_ranks` that have some (others pass zeros); empty in worlds without losses."""
        return []

    def reads_files(self, counter: StorageCounter) -> AbstractContextManager[None]:
        """Context for reading weights from mapped files, whose pages are not counted."""
        return mapped_files_left_out(counter)

    def generator(self, device: torch.device, seed: int) -> torch.Generator | None:
        """Make a seeded generator for initial weights; None if nothing is drawn."""
        return seeded(device, seed)

    def settle(self) -> None:  # noqa: B027 -- collectives that complete at once hold no tensors
        """Wait until the collectives' library has released finished tensors, before memory is accounted for."""

    def leave(self) -> None:  # noqa: B027 -- a rank alone has no others to wait for
        """End together with the other ranks."""


def no_values() -> str:
    """Note for readers of an emulated rank's figures."""
    return (
        f"emulated: torch {torch.__version__} built for CUDA {torch.version.cuda}; no values are "
        "computed: no losses, no times"
    )
