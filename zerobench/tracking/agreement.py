"""Who this rank of a user's own job is, and the one folder that all of its ranks write to."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from zerobench.errors import UserError
from zerobench.folder import TrialFolder
from zerobench.progress import Rank


def this_rank() -> Rank:
    """As torch.distributed knows it where it runs, else as the launcher's environment says; alone by default."""
    running = dist.is_available() and dist.is_initialized()
    return Rank(
        rank=dist.get_rank() if running else int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=dist.get_world_size() if running else int(os.environ.get("WORLD_SIZE", "1")),
        hostname=socket.gethostname(),
        pid=os.getpid(),
    )


@dataclass(frozen=True)
class Agreed:
    """What all ranks know alike."""

    folder: TrialFolder
    ranks_per_node: int
    """Of the node that has most; launchers and libraries set variables for it to different things."""


def agree(rank: Rank, make: Callable[[], TrialFolder]) -> Agreed:
    """The folder that rank 0 makes, and how the ranks lie on nodes; a collective call where there are several.

    Raises UserError: rank 0 could not make it, or another node cannot; on every rank, so that none waits.
    """
    said: list[str | None] = [None, None]
    if rank.rank == 0:
        try:
            said[0] = str(make().path)
        except UserError as error:
            said[1] = str(error)
    are_several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if are_several:
        dist.broadcast_object_list(said, src=0)
    if said[0] is None:
        raise UserError(said[1] or f"rank {rank.rank}: torch.distributed does not run, and only rank 0 makes a folder")
    folder = TrialFolder(Path(said[0]))
    here = (rank.hostname, _fault_of_making(folder))
    everywhere = [here]
    if are_several:
        everywhere = [here] * dist.get_world_size()
        dist.all_gather_object(everywhere, here)
    for hostname, fault in everywhere:
        if fault is not None:
            raise UserError(f"{folder.path}: cannot be made on {hostname}: {fault}")
    return Agreed(folder, max(Counter(hostname for hostname, _ in everywhere).values()))


def _fault_of_making(folder: TrialFolder) -> str | None:
    """Make the folder where this node shares no disk with rank 0's: its records stay here. None where it is there."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None
