"""torch with one rank there: groups form at once and answer as if all ranks were alike.

NCCL's groups are torch's own over the stand-in library, which answers so by itself; gloo's, which would wait for their
peers' sockets, are torch's fake ones. What the ranks say to each other through a store comes from one in which every
key is there.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from zerobench.emulator.inside.absent_peers import AbsentPeers, instant_cpu_groups
from zerobench.launch.emulate.part import Part

_HashStore: Any = vars(dist)["HashStore"]


def stand_alone(part: Part) -> None:
    """Let this process be rank `part.rank` of `part.world_size`, whoever else is asked for."""
    torch_dist: Any = dist
    home: Any = dist.distributed_c10d
    store = AbsentPeers()
    kept.append(store)
    instant_cpu_groups()
    _replace("init_process_group", _joining(dist.init_process_group, part, store))
    _replace("broadcast_object_list", _nothing)  # the sender has what this rank has
    _replace("all_gather_object", _gather_objects)
    _replace("gather_object", _gather_object)
    _replace("scatter_object_list", _scatter_objects)
    _replace("monitored_barrier", _nothing)
    torch_dist.TCPStore = home.TCPStore = lambda *_, **__: store


kept: list[Any] = []
"""torch keeps a store only from C++, and its Python half must live as long."""


def _replace(name: str, new: Callable[..., Any]) -> None:
    """In every module of torch that has taken it by name, as that of device meshes, which makes the first group."""
    old = getattr(dist, name)
    for module in [loaded for key, loaded in sys.modules.items() if key.partition(".")[0] == "torch"]:
        if vars(module).get(name) is old:
            setattr(module, name, new)


def _joining(join: Callable[..., None], part: Part, store: Any) -> Callable[..., None]:
    @wraps(join)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,  # noqa: ARG001 -- torch's signature; there is nobody to meet
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        _store: Any | None = None,
        *more: Any,
        **named: Any,
    ) -> None:
        named.pop("store", None)
        # With it torch splits communicators off the first one, and how many ranks a part has is said to no rank alone:
        # the stand-in would take the buffers of none. Without it each is made for its ranks, and takes theirs.
        named.pop("device_id", None)
        join(
            backend,
            None,
            timeout,
            world_size if world_size > 0 else part.world_size,
            rank if rank >= 0 else part.rank,
            # Rank 0 is asked for nothing: a store of C++ needs no Python in NCCL's threads.
            _HashStore() if part.rank == 0 else store,
            *more,
            **named,
        )

    return init_process_group


def _nothing(*_: Any, **__: Any) -> None:
    """Nobody to wait for."""


def _gather_objects(object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
    """Every rank has what this one has."""
    object_list[:] = [copy.deepcopy(obj) for _ in object_list]


def _gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any) -> None:
    """The same, where this rank is who gathers."""
    if object_gather_list is not None:
        _gather_objects(object_gather_list, obj)


def _scatter_objects(
    scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, *_: Any, **__: Any
) -> None:
    """What this rank would send to itself, where it is who scatters; else nothing is sent."""
    if scatter_object_input_list:
        rank = dist.get_rank() % len(scatter_object_input_list)
        scatter_object_output_list[0] = scatter_object_input_list[rank]


def leave() -> None:
    """Let go of the groups, so that torch has nothing to say of it at the end."""
    if dist.is_available() and dist.is_initialized() and torch.cuda.is_initialized():
        dist.destroy_process_group()
