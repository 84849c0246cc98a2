"""The world under the training loop: who the other ranks are and what reaches them.

`measured` is the only one so far: real processes, real collectives.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from zerobench.spec.trial import TrialSpec
from zerobench.worker.device import Device
from zerobench.worker.launched import Rank


def join(trial: TrialSpec, rank: Rank, device: Device) -> None:
    """Start the process group, through DeepSpeed where the strategy is DeepSpeed's."""
    if rank.world_size != trial.world_size:
        raise RuntimeError(f"started with {rank.world_size} ranks, but the trial has {trial.world_size}")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    if trial.zero_stage is None and rank.world_size == 1:
        return
    limit = timedelta(seconds=trial.timeout_s)
    if trial.zero_stage is None:
        dist.init_process_group(device.backend, rank=rank.rank, world_size=rank.world_size, timeout=limit)
    else:
        import deepspeed

        deepspeed.init_distributed(dist_backend=device.backend, auto_mpi_discovery=False, timeout=limit)


def first_collective(device: Device) -> None:
    """One small all-reduce and a barrier, so that the library's buffers appear here and not in a phase."""
    if dist.is_initialized():
        dist.all_reduce(torch.ones(1, device=device.torch_device))
        dist.barrier()
    device.synchronize()


def release_shared_memory() -> None:
    """Unlink this rank's segment of DeepSpeed's shared-memory all-reduce, which DeepSpeed itself never does.

    On CPU every process that loads the kernel leaves 69 MB in /dev/shm for good (csrc/cpu/comm/shm.cpp,
    shm_initialize).
    After the first collective all ranks have mapped it, and a name without a file serves them as well.
    """
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    rank = dist.get_rank() if dist.is_initialized() else 0
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}"
    Path("/dev/shm", name).unlink(missing_ok=True)  # noqa: S108 - where shm_open puts it


def mean_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The mean of a tensor over all ranks, the same on each."""
    if dist.is_initialized():
        dist.all_reduce(values)
        values /= dist.get_world_size()
    return values


def leave() -> None:
    """Wait for all, so that nobody's exit ends a peer that still writes."""
    if dist.is_initialized():
        dist.barrier()
