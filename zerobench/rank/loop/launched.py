"""Prepares a rank's process before torch is imported: identity from the launcher, programs of its environment."""

import os
import socket
import sys
from pathlib import Path

from zerobench.config.trial.trial import TrialSpec
from zerobench.records.progress import Rank


def find_own_programs() -> None:
    """Let torch find this environment's ninja, also if the environment is not activated.

    Kernels compiled by one ninja look stale to another, so runs with and without an activated shell would recompile
    them every time.
    """
    ours, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    if ours not in path.split(os.pathsep):
        os.environ["PATH"] = f"{ours}{os.pathsep}{path}"


def read_rank(ranks_per_node: int) -> Rank:
    """Read RANK, LOCAL_RANK and WORLD_SIZE from the environment; a single rank if nothing is set.

    All supported launchers number the ranks node by node, so the node follows from the rank.
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
    """Rank that this process plays alone in a predicted trial, on one device of one node."""
    return Rank(
        rank=trial.prediction.rank,
        local_rank=0,
        world_size=trial.world_size,
        hostname=socket.gethostname(),
        pid=os.getpid(),
    )
