"""The emulated world: a process is rank r of N on a GPU that is not there, under the CUDA build of torch.

Below torch stand libraries (zerobench/emulator) whose device memory is address space and whose kernels do nothing. All
above them is real: the dispatcher, the caching allocator, ProcessGroupNCCL, DeepSpeed. So the bytes are torch's own,
and no value is computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from zerobench.config.derived.strategy import strategy_info, uses_deepspeed
from zerobench.config.hardware.hardware import find_gpu
from zerobench.emulator.inside import kernels
from zerobench.emulator.inside.absent_peers import AbsentPeers, instant_cpu_groups
from zerobench.emulator.inside.account import outside_torch
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.emulated_order import EmulatedCounter, EmulatedOrder, current_stream
from zerobench.rank.ledger.order import Order
from zerobench.rank.nvml.nvml import DeviceReader
from zerobench.rank.worlds.base import no_values
from zerobench.rank.worlds.deviceless import DevicelessWorld
from zerobench.rank.worlds.simulation import shortcuts
from zerobench.records.progress import Rank
from zerobench.records.records import ContextMemory


class EmulatedWorld(DevicelessWorld):
    """Alone, on an emulated GPU."""

    _backends = "cpu:gloo,cuda:nccl"
    """On the device NCCL's own group; on the host gloo's, which is an instant one here."""

    def open_device(self, rank: Rank) -> Device:
        """The emulated GPU; never another one."""
        kernels.install()
        shortcuts.agree_with_absent_ranks()
        shortcuts.copy_at_once()
        shortcuts.ask_once()
        shortcuts.ask_cuda_alone()
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        order = Order(self.traffic, current_stream)
        self._order = EmulatedOrder(order, waits_at_the_end=self.trial.strategy == "ddp")
        self._order.install()
        if uses_deepspeed(self.trial):
            self._order.watch_engine()
        properties: Any = torch.cuda.get_device_properties(device)
        gpu = self.trial.prediction.gpu
        if gpu is None or find_gpu(properties.name) != find_gpu(gpu):
            raise RuntimeError(f"prediction.gpu: {gpu!r} should be emulated, but torch finds {properties.name!r}")
        return Device(device, gpu, f"GPU-{properties.uuid}", "nccl")

    def reader(self, device: Device) -> DeviceReader | None:
        """The stand-in driver, by the account that all stand-ins keep."""
        return DeviceReader.open(device.uuid)

    def outside_torch(self) -> ContextMemory | None:
        """By the same account."""
        return outside_torch()

    def join(self, rank: Rank, device: Device) -> None:
        """Start torch's NCCL group, whose other ranks are not there, and let DeepSpeed find it; not for one process."""
        if strategy_info(self.trial.strategy).is_reference:
            return
        os.environ.update(
            RANK=str(rank.rank), LOCAL_RANK="0", WORLD_SIZE=str(rank.world_size), **self._master()
        )  # whichever of its node's it is, a process sees one GPU
        self._store = self._find_peers(rank)  # torch asks the Python object, and does not keep it
        dist.init_process_group(self._backends, store=self._store, rank=rank.rank, world_size=rank.world_size)
        if uses_deepspeed(self.trial):
            import deepspeed

            deepspeed.init_distributed(dist_backend=device.backend, auto_mpi_discovery=False)
        dist.all_reduce(torch.ones(1, device=device.torch_device))
        dist.barrier()
        device.synchronize()

    def _master(self) -> dict[str, str]:
        """Addresses where ranks meet, as a launcher would give them."""
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

    def _find_peers(self, _: Rank) -> Any:
        """A store that answers for ranks that are not there."""
        instant_cpu_groups()
        return AbsentPeers()

    def notes(self) -> list[str]:
        """That no value is computed."""
        return [no_values()]

    def counter(self, observe: Callable[[], object]) -> EmulatedCounter:
        """One that hears collectives."""
        return EmulatedCounter(observe, self.traffic, self.trial.gpus_per_node, self._order)

    def micro_batches(self, rank: Rank, vocab_size: int) -> Iterator[torch.Tensor]:
        """Tokens of which none means anything."""
        shape = (self.trial.micro_batch_size, self.trial.sequence_length)
        while True:
            yield torch.zeros(shape, dtype=torch.int64)


class PeersWorld(EmulatedWorld):
    """Among all ranks of the world, each on an emulated GPU of its own (zerobench.rank.loop.forked_trial)."""

    is_alone = False

    def _master(self) -> dict[str, str]:
        """As the environment has it already."""
        return {}

    def _find_peers(self, rank: Rank) -> Any:
        """The store of torch that the process above the ranks holds."""
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.TCPStore(address, port, rank.world_size, is_master=False)  # type: ignore[attr-defined] # public
