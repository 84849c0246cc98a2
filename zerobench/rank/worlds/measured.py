"""The measured world: real ranks under a launcher, real collectives.

Ranks find each other through torch's store, which on a single machine listens only on the loopback interface. By
default the store listens on every interface of rank 0's machine, without authentication: any client that reaches the
port can end the run or alter messages between ranks. torch accepts a listening socket instead, and a process shares one
store of a port with later users (`multi_tenant`): DeepSpeed, a process group of torch's own, RPC.
"""

import ipaddress
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, and not re-exported by its stubs

from zerobench.common.units import counted
from zerobench.config.derived.strategy import strategy_info, uses_deepspeed
from zerobench.rank.ledger.device import Device, choose_device
from zerobench.rank.ledger.heard_collectives import HearingCounter
from zerobench.rank.ledger.recorder import settle_collectives
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.rank.worlds.base import World
from zerobench.records.progress import Rank


def hold_store(rank: Rank, num_nodes: int, timeout: timedelta) -> TCPStore | None:
    """Open the store at MASTER_ADDR and MASTER_PORT on rank 0 of a run on one machine; keep it until the others join.

    Returns None elsewhere, and if MASTER_ADDR is no loopback address: torch then makes the store.

    Raises OSError if the port is taken.
    """
    address = os.environ["MASTER_ADDR"]
    if rank.rank != 0 or num_nodes > 1 or not _is_loopback(address):
        return None
    port = int(os.environ["MASTER_PORT"])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN)
    return TCPStore(
        address,
        port,
        world_size=rank.world_size,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener.detach(),
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class MeasuredWorld(World):
    """The world of a rank that a launcher started."""

    def open_device(self, rank: Rank) -> Device:
        """Open the GPU of this local rank, or the CPU."""
        return choose_device(rank.local_rank)

    def join(self, rank: Rank, device: Device) -> None:
        """Start the process group, through DeepSpeed if the strategy uses it."""
        if rank.world_size != self.trial.world_size:
            ranks = counted(rank.world_size, "rank")
            raise RuntimeError(f"started with {ranks}, but the trial has {self.trial.world_size}")
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        info, limit = strategy_info(self.trial.strategy), timedelta(seconds=self.trial.peers_limit_s)
        if not info.is_reference:
            self._store = hold_store(rank, self.trial.num_nodes, limit)
        if uses_deepspeed(self.trial):
            import deepspeed

            deepspeed.init_distributed(dist_backend=device.backend, auto_mpi_discovery=False, timeout=limit)
        elif not info.is_reference:
            dist.init_process_group(device.backend, rank=rank.rank, world_size=rank.world_size, timeout=limit)
        if dist.is_initialized():  # a first collective: the library allocates its buffers here, before any phase
            dist.all_reduce(torch.ones(1, device=device.torch_device))
            dist.barrier()
        device.synchronize()
        _release_shared_memory()

    def counter(self, observe: Callable[[], object]) -> StorageCounter:
        """Make a counter that also reports collectives."""
        return HearingCounter(observe, self.traffic.collective, self.trial.gpus_per_node)

    def settle(self) -> None:
        """Wait a moment for gloo's threads."""
        settle_collectives()

    def mean_over_ranks(self, losses: torch.Tensor, num_ranks: int) -> list[float]:
        """Average losses with an all-reduce, once, after all steps, so that no step waits for it.

        In fp64, where sums of fp32 losses are exact: in fp32 a loss would depend on its position in the tensor, since
        gloo adds the parts of a tensor in different orders.
        """
        if dist.is_initialized():
            sums = losses.double()
            dist.all_reduce(sums)
            losses = (sums / num_ranks).float()
        values: list[float] = losses.tolist()
        return values

    def leave(self) -> None:
        """Wait for all ranks, so that no exit ends a peer that is still writing."""
        if dist.is_initialized():
            dist.barrier()


def _release_shared_memory() -> None:
    """Unlink this rank's segment of DeepSpeed's shared-memory all-reduce, which DeepSpeed itself never does.

    On a CPU every process that loads the kernel leaves 69 MB in /dev/shm for good (csrc/cpu/comm/shm.cpp,
    shm_initialize). After the first collective all ranks have mapped it and no longer need its name.
    """
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    rank = dist.get_rank() if dist.is_initialized() else 0
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
    Path("/dev/shm", name).unlink(missing_ok=True)  # noqa: S108 - where shm_open puts it
