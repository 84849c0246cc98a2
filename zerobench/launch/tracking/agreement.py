"""Identity of this rank in a user's own job, its node, and the folder shared by all of its ranks.

Nodes are distinguished by hostname and by the launcher's node index, since either may fail: two nodes may share a
hostname, and many launchers do not number nodes.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from zerobench.common.errors import UserError
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Rank
from zerobench.records.records import NvmlSummary, read_or_none

_NODE = ("GROUP_RANK", "CROSS_RANK", "SLURM_NODEID")
"""Node index variables of torchrun, DeepSpeed's launcher and srun."""
_LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")


def this_rank() -> Rank:
    """Return this rank, from torch.distributed if initialised, else from the launcher's variables; alone by default."""
    running = dist.is_available() and dist.is_initialized()
    return Rank(
        rank=dist.get_rank() if running else int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=dist.get_world_size() if running else int(os.environ.get("WORLD_SIZE", "1")),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        node=launcher_node(os.environ),
    )


def launcher_node(environ: Mapping[str, str]) -> int:
    """Return the launcher's node index, else the one implied by its ranks per node; 0 without either."""
    node = next((environ[name] for name in _NODE if environ.get(name, "").isdecimal()), None)
    if node is not None:
        return int(node)
    ranks = next((int(environ[name]) for name in _LOCAL_RANKS if environ.get(name, "").isdecimal()), 0)
    return int(environ.get("RANK", "0")) // ranks if ranks else 0


@dataclass(frozen=True)
class Agreement:
    """Facts that all ranks agree on."""

    folder: TrialFolder
    ranks_per_node: int
    """On the fullest node; launchers and libraries disagree about the meaning of its variables."""
    node: int
    """Index of this rank's node."""
    is_first_of_node: bool
    """True for the rank that starts its node's sampler."""
    speaks: bool = False
    """True for the single rank that writes the description of the work."""


class _Node(NamedTuple):
    """A node, as one of its ranks identifies it."""

    hostname: str
    number: int


class _RankReport(NamedTuple):
    """One rank's report to the others."""

    node: _Node
    fault: str | None


def agree(rank: Rank, make: Callable[[], TrialFolder]) -> Agreement:
    """Share the folder that rank 0 makes, and find the ranks of each node; a collective call if there are several.

    Raises UserError if rank 0 could not make it, or another node cannot; on every rank, so that none waits.
    """
    words: list[str | None] = [None, None, None]
    if rank.rank == 0:
        try:
            folder = make()
            summary = read_or_none(folder.nvml_summary(0), NvmlSummary)
            words[0], words[2] = str(folder.path), None if summary is None else summary.hostname
        except UserError as error:
            words[1] = str(error)
    are_several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if are_several:
        dist.broadcast_object_list(words, src=0)
    if words[0] is None:
        raise UserError(
            words[1] or f"rank {rank.rank}: torch.distributed is not initialized; only rank 0 makes the folder"
        )
    folder = TrialFolder(Path(words[0]))
    here = _RankReport(_Node(rank.hostname, rank.node), _fault_of_making(folder))
    everywhere = [here]
    if are_several:
        everywhere = [here] * dist.get_world_size()
        dist.all_gather_object(everywhere, here)
    for node, fault in everywhere:
        if fault is not None:
            raise UserError(f"{folder.path}: cannot be created on {node.hostname}: {fault}")
    nodes = [node for node, _ in everywhere]
    is_first = not are_several or nodes.index(here.node) == dist.get_rank()
    per_node = max(Counter(nodes).values())
    return Agreement(folder, per_node, _index(here.node, nodes, words[2]), is_first, speaks=rank.rank == 0)


def _index(here: _Node, nodes: Sequence[_Node], watched_on: str | None) -> int:
    """Return this node's index: by first rank, after the watcher's own node."""
    distinct = list(dict.fromkeys(nodes))
    if watched_on is None:
        return distinct.index(here)
    # The watcher's own node comes first: its sampler is node 0's.
    watched = next((node for node in distinct if node.hostname == watched_on), None)
    return [watched, *(node for node in distinct if node != watched)].index(here)


def _fault_of_making(folder: TrialFolder) -> str | None:
    """Make the folder unless it exists; returns the error, if any."""
    # A node that shares no disk with rank 0 keeps its records here.
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None
