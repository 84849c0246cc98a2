"""The measured world: real ranks under a launcher, real collectives."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from zerobench.common.units import counted
from zerobench.config.derived.strategy import strategy_info, uses_deepspeed
from zerobench.rank.ledger.device import Device, choose_device
from zerobench.rank.ledger.heard_collectives import HearingCounter
from zerobench.rank.ledger.recorder import settle_collectives
from zerobench.rank.ledger.storages import StorageCounter
from zerobench.rank.worlds.base import World
from zerobench.rank.worlds.loopback import hold_store
from zerobench.records.progress import Rank


class MeasuredWorld(World):
    """As the launcher started it."""

    def open_device(self, rank: Rank) -> Device:
        """The GPU of this local rank, or the CPU."""
        return choose_device(rank.local_rank)

    def join(self, rank: Rank, device: Device) -> None:
        """Start the process group, through DeepSpeed where the strategy is DeepSpeed's."""
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
        _first_collective(device)
        _release_shared_memory()

    def counter(self, observe: Callable[[], object]) -> StorageCounter:
        """One that hears the ranks' collectives too."""
        return HearingCounter(observe, self.traffic.collective, self.trial.gpus_per_node)

    def settle(self) -> None:
        """Give gloo's threads a moment."""
        settle_collectives()

    def mean_over_ranks(self, losses: torch.Tensor, num_ranks: int) -> list[float]:
        """Averaged by an all-reduce, once, after all steps, so that no step waits for it.

        In fp64, where sums of fp32 losses are exact: in fp32 a loss would depend on its place among the others, since
        gloo adds the parts of a tensor in another order each.
        """
        if dist.is_initialized():
            sums = losses.double()
            dist.all_reduce(sums)
            losses = (sums / num_ranks).float()
        values: list[float] = losses.tolist()
        return values

    def leave(self) -> None:
        """Wait for all, so that nobody's exit ends a peer that still writes."""
        if dist.is_initialized():
            dist.barrier()


def _first_collective(device: Device) -> None:
    """One small all-reduce and a barrier, so that the library's buffers appear here and not in a phase."""
    if dist.is_initialized():
        dist.all_reduce(torch.ones(1, device=device.torch_device))
        dist.barrier()
    device.synchronize()


def _release_shared_memory() -> None:
    """Unlink this rank's segment of DeepSpeed's shared-memory all-reduce, which DeepSpeed itself never does.

    On CPU every process that loads the kernel leaves 69 MB in /dev/shm for good (csrc/cpu/comm/shm.cpp,
    shm_initialize).
    After the first collective all ranks have mapped it, and a name without a file serves them as well.
    """
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    rank = dist.get_rank() if dist.is_initialized() else 0
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
    Path("/dev/shm", name).unlink(missing_ok=True)  # noqa: S108 - where shm_open puts it
