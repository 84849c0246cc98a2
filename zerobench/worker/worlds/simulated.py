"""The simulated world: one process is rank r of N on a device that is not there; no tensor has bytes.

The device is a GPU of the catalogue, or the CPU, as the trial's prediction says. Everything that runs is the real
engine and the real model; what they run on is in zerobench/worker/simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from zerobench.memory.ledger import Ledger
from zerobench.memory.nvml import DeviceReader
from zerobench.records import ContextMemory
from zerobench.spec.hardware import find_gpu

from zerobench.worker import simulation
from zerobench.worker.device import Device
from zerobench.worker.launched import Rank
from zerobench.worker.recorder import DeviceRows, NvmeAccount
from zerobench.worker.simulation import kernels
from zerobench.worker.simulation.allocator import SimulatedRows
from zerobench.worker.simulation.storages import SimulatedCounter
from zerobench.worker.simulation.tensors import SimulatedTensors
from zerobench.worker.worlds import instant_group
from zerobench.worker.worlds.base import World
from zerobench.worker.worlds.solo import join_alone


class SimulatedWorld(World):
    """Alone, on a simulated device."""

    trains = False
    _counter: SimulatedCounter | None = None

    def open_device(self, rank: Rank) -> Device:
        """The simulated GPU, or the CPU for comparison with CPU runs."""
        self._tensors = SimulatedTensors(self.traffic.add_flops)
        gpu = self.trial.prediction.gpu
        if gpu is None:
            simulation.use_cpu()
            return Device(torch.device("cpu"), "cpu", None, instant_group.BACKEND)
        known = find_gpu(gpu)
        capacity = known.memory_bytes if known else None
        if capacity is None:
            raise RuntimeError(f"prediction.gpu: the catalogue has no memory size of {gpu!r}")
        simulation.use_gpu(capacity, self._allocated_bytes, self.traffic.add_flops)
        return Device(torch.device(simulation.DEVICE, 0), gpu, None, instant_group.BACKEND)

    def _allocated_bytes(self) -> int:
        return 0 if self._counter is None else self._counter.totals.get(simulation.DEVICE, 0)

    def join(self, rank: Rank, device: Device) -> None:
        """Make the group of which this is the only member that is there."""
        join_alone(rank, self.trial.zero_stage is not None, self.traffic.collective, device.torch_device.type)

    def context_memory(self) -> ContextMemory | None:
        """What others have measured of the GPU, or a calibration file."""
        gpu = self.trial.prediction.gpu
        if gpu is None:
            return None
        from zerobench.spec.overheads import overhead_of

        overhead = overhead_of(gpu, self.trial.world_size)
        return ContextMemory(
            before_bytes=0, context_bytes=overhead.context_bytes, collectives_bytes=overhead.collectives_bytes
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Tensors are simulated, and the backward pass stays on this thread, where its observer is."""
        with self._tensors, torch.autograd.set_multithreading_enabled(False):
            yield

    def reader(self, device: Device) -> DeviceReader | None:
        """There is no driver."""
        return None

    def counter(self, observe: Callable[[], object]) -> SimulatedCounter:
        """Counts from within the simulation of tensors."""
        self._counter = SimulatedCounter(observe, self._tensors)
        return self._counter

    def device_rows(self, device: Device, ledger: Ledger, reader: DeviceReader | None) -> DeviceRows | None:
        """The caching allocator's figures, by a model of it, on a simulated GPU."""
        return SimulatedRows(ledger.counter) if self.trial.prediction.gpu is not None else None

    def nvme(self, folder: str | None, rank: int) -> NvmeAccount:
        """Counts what the swappers hand to their handle."""
        return NvmeAccount(folder, rank, kernels.read_block_io, kernels.swap_file_bytes)

    def micro_batches(self, rank: Rank, vocab_size: int) -> Iterator[torch.Tensor]:
        """Tokens without values."""
        shape = (self.trial.micro_batch_size, self.trial.sequence_length)
        while True:
            yield torch.empty(shape, dtype=torch.int64)

    def generator(self, device: torch.device, seed: int) -> torch.Generator | None:
        """Nothing is drawn."""
        return None
