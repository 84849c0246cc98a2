"""The simulated world: one process is rank r of N on an absent device; no tensor has bytes.

The device is a GPU of the catalogue, or the CPU, as set in the trial's prediction. Engine and model are the real ones;
the simulated device is in zerobench/rank/worlds/simulation.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch

from zerobench.common.vocabulary import Category
from zerobench.config.derived.strategy import strategy_info, uses_deepspeed
from zerobench.config.hardware.hardware import find_gpu
from zerobench.config.hardware.overheads import overhead_of, workspace_of
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.allocator.allocator_settings import settings_notes
from zerobench.rank.ledger.cuda import AllocatorTotals
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.engine_tensors import NamedTensor
from zerobench.rank.ledger.order import Order
from zerobench.rank.ledger.recorder import DeviceRows
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.rank.nvml.nvml import DeviceReader
from zerobench.rank.worlds import instant_group, simulation
from zerobench.rank.worlds.deviceless import DevicelessWorld
from zerobench.rank.worlds.simulation import hooks, streams
from zerobench.rank.worlds.simulation.absent_files import files_without_values
from zerobench.rank.worlds.simulation.allocator import SimulatedCounter, SimulatedRows
from zerobench.rank.worlds.simulation.tensors import SimulatedTensors
from zerobench.rank.worlds.solo import join_alone
from zerobench.records.progress import Rank
from zerobench.records.records import ContextMemory, Holder


class SimulatedWorld(DevicelessWorld):
    """Alone, on a simulated device."""

    def __init__(self, trial: TrialSpec) -> None:
        super().__init__(trial)
        self._tensors = SimulatedTensors(self.traffic.add_flops)
        self._tensors.listener = self.traffic.collective
        self._counter: SimulatedCounter | None = None
        self._rows: SimulatedRows | None = None

    def open_device(self, rank: Rank) -> Device:
        """Open the simulated GPU, or the CPU for comparison with CPU runs."""
        gpu = self.trial.prediction.gpu
        order = Order(self.traffic, streams.current_number, on_gpu=gpu is not None)
        self._tensors.charge = order.charge
        if gpu is None:
            simulation.use_cpu()
            return Device(torch.device("cpu"), "cpu", None, instant_group.BACKEND)
        catalogue_gpu = find_gpu(gpu)
        capability = None if catalogue_gpu is None else catalogue_gpu.compute_capability
        if self.end is not None:
            hooks.install(self.end)
        simulation.use_gpu(self, partial(self._count_attention, order), capability)
        device = torch.device(simulation.DEVICE, 0)
        self._tensors.keep_workspaces(device, workspace_of(gpu).workspace_bytes)
        return Device(device, gpu, None, instant_group.BACKEND)

    def _count_attention(self, order: Order, flops: int, is_backward: bool) -> None:
        self.traffic.add_flops(flops)
        order.attention(flops, is_backward=is_backward)

    @property
    def capacity_bytes(self) -> int:
        """Memory of the simulated GPU."""
        gpu = self.trial.prediction.gpu
        catalogue_gpu = None if gpu is None else find_gpu(gpu)
        if catalogue_gpu is None or catalogue_gpu.capacity_bytes is None:
            raise RuntimeError(f"prediction.gpu: the catalogue has no memory size for {gpu!r}")
        return catalogue_gpu.capacity_bytes

    @property
    def devices_per_node(self) -> int:
        """GPUs of one node."""
        return self.trial.gpus_per_node

    def allocated_bytes(self) -> int:
        """Bytes of torch on the device now."""
        return 0 if self._counter is None else self._counter.totals.get(simulation.DEVICE, 0)

    def empty_cache(self) -> None:
        """Release the allocator's free segments."""
        if self._rows is not None:
            self._rows.empty_cache()

    def pinned(self, tensor: torch.Tensor) -> None:
        """Mark a tensor as page-locked."""
        if self._counter is not None:
            self._counter.see(tensor)
            storage = self._counter.find(tensor)
            if storage is not None:
                storage.is_page_locked = True

    def join(self, rank: Rank, device: Device) -> None:
        """Make the group whose only existing member is this rank; the reference strategy has none."""
        if strategy_info(self.trial.strategy).is_reference:
            return
        under_deepspeed, per_node = uses_deepspeed(self.trial), self.trial.gpus_per_node
        join_alone(rank, under_deepspeed, self.traffic.collective, device.torch_device.type, per_node)

    def outside_torch(self) -> ContextMemory | None:
        """Context memory, with NCCL's buffers of each group that has communicated."""
        context, _ = self.context_memory()
        gpu = self.trial.prediction.gpu
        if context is None or gpu is None:
            return None
        overheads = [overhead_of(gpu, size) for size in instant_group.InstantGroup.connected]
        nbytes = sum(each.another_bytes for each in overheads[1:]) + sum(
            each.collectives_bytes for each in overheads[:1]
        )
        return context.model_copy(update={"collectives_bytes": nbytes})

    def notes(self) -> list[str]:
        """Notes on modelled settings of the allocator."""
        return settings_notes(os.environ)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context with simulated tensors, and with the backward pass on this thread, where its observer is."""
        with self._tensors, torch.autograd.set_multithreading_enabled(False):
            yield

    def reads_files(self, counter: StorageCounter) -> AbstractContextManager[None]:
        """Context for reading weights from files without values."""
        return files_without_values(self._tensors, counter.leave_out)

    def walk(self) -> Iterable[NamedTensor]:
        """The matrix library's workspaces."""
        return [
            NamedTensor(tensor, Category.WORKSPACES, holder=Holder.LIBRARY)
            for tensor in self._tensors.workspaces.values()
        ]

    def device_totals(self) -> AllocatorTotals | None:
        """Totals of the model of the caching allocator."""
        return None if self._rows is None else self._rows.totals()

    def counter(self, observe: Callable[[], object]) -> SimulatedCounter:
        """Make a counter that is fed by the simulation of tensors."""
        self._counter = SimulatedCounter(observe, self._tensors)
        if self.trial.prediction.gpu is None:
            self._tensors.wrote = self._counter.wrote
        return self._counter

    def device_rows(self, device: Device, reader: DeviceReader | None) -> DeviceRows | None:
        """Recorder of the model of the caching allocator; None on a CPU."""
        if self.trial.prediction.gpu is None or self._counter is None:
            return None
        self._rows = SimulatedRows(self._counter, self._room_bytes)
        return self._rows

    def _room_bytes(self) -> int:
        """Bytes that the context and the current communicators leave to torch."""
        outside = self.outside_torch()
        taken = 0 if outside is None else (outside.context_bytes or 0) + (outside.collectives_bytes or 0)
        return self.capacity_bytes - taken

    def micro_batches(self, rank: Rank, vocab_size: int) -> Iterator[torch.Tensor]:
        """Yield tokens without values."""
        shape = (self.trial.micro_batch_size, self.trial.sequence_length)
        while True:
            yield torch.empty(shape, dtype=torch.int64)
