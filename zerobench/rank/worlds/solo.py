"""The solo world: one process is rank r of N, with real tensors on a real device, and collectives without cost.

It measures the memory of one rank of any N on one GPU or CPU, to the byte, and the time of a step without
communication.
"""

import os
from importlib import import_module

from zerobench.config.derived.strategy import uses_deepspeed
from zerobench.rank.ledger.device import Device, choose_device
from zerobench.rank.worlds import instant_group
from zerobench.rank.worlds.base import World
from zerobench.records.progress import Rank


class SoloWorld(World):
    """Alone, with absent ranks that are assumed to hold the same values."""

    is_alone = True

    def open_device(self, rank: Rank) -> Device:
        """Open the only device of this process."""
        device = choose_device(rank.local_rank)
        device.backend = instant_group.BACKEND
        return device

    def join(self, rank: Rank, device: Device) -> None:
        """Make the group whose only existing member is this rank."""
        under_deepspeed, per_node = uses_deepspeed(self.trial), self.trial.gpus_per_node
        join_alone(rank, under_deepspeed, self.traffic.collective, device.torch_device.type, per_node)
        device.synchronize()


def join_alone(
    rank: Rank, under_deepspeed: bool, listener: instant_group.Listener, device: str, ranks_per_node: int = 1
) -> None:
    """Make an instant group and let DeepSpeed find it; sets the environment as a launcher would."""
    os.environ.update(
        RANK=str(rank.rank),
        LOCAL_RANK=str(rank.local_rank),
        WORLD_SIZE=str(rank.world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )
    instant_group.join(rank.rank, rank.world_size, listener, *{"cpu", device}, ranks_per_node=ranks_per_node)
    if under_deepspeed:
        import deepspeed

        # Its shared memory would wait for absent ranks. (import_module: in its parent, `torch` is torch itself.)
        import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
        deepspeed.init_distributed(dist_backend=instant_group.BACKEND, auto_mpi_discovery=False)
