"""Who this process is, as its launcher said; read before torch is imported."""

import os
import socket

from zerobench.config.trial.trial import TrialSpec
from zerobench.records.progress import Rank


def read_rank(ranks_per_node: int) -> Rank:
    """Read RANK, LOCAL_RANK and WORLD_SIZE from the environment; alone where nothing is set.

    Every launcher that we start numbers the ranks node by node, so the node follows from the rank.
    """
    rank = int(os.environ.get("RANK", "0"))
    return Rank(
        rank=rank,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        node=rank // ranks_per_node,
    )


def one_of(trial: TrialSpec) -> Rank:
    """The rank that this process plays alone, where the trial is predicted; it has one device and one node."""
    return Rank(
        rank=trial.prediction.rank,
        local_rank=0,
        world_size=trial.world_size,
        hostname=socket.gethostname(),
        pid=os.getpid(),
    )
