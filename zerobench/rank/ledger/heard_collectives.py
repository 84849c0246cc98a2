"""Hears of collectives among real ranks: which, in how large a group, with how many bytes, while the ledger watches.

Every call passes torch's dispatcher, from C++ too (DDP's reducer), so the dispatch mode that counts storages sees it:
`c10d::` for torch.distributed, `_c10d_functional::` for DTensor. The bytes mean what they do in the solo and simulated
worlds (rank/worlds/instant_group.py), where the group itself is asked. Sends and receives are said by those who make
them (Job.heard), as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from zerobench.rank.ledger.storages import Listener, StorageCounter, tensors_in

CollectiveListener = Callable[[str, int, int, int | None], object]
"""Hears of each collective: its kind, the size of its group, the bytes of its whole message, the group's nodes."""


@dataclass(frozen=True)
class _Call:
    """How the bytes of the whole message are read from an operation's arguments."""

    kind: str
    argument: int = 0
    """Which of them holds the message,"""
    is_part: bool = False
    """or this rank's part of it."""


_CALLS: dict[str, _Call] = {
    "c10d::allreduce_": _Call("all_reduce"),
    "c10d::allreduce_coalesced_": _Call("all_reduce"),
    "c10d::reduce_": _Call("reduce"),
    "c10d::broadcast_": _Call("broadcast"),
    "c10d::barrier": _Call("barrier"),
    "c10d::allgather_": _Call("all_gather"),
    "c10d::_allgather_base_": _Call("all_gather"),
    "c10d::allgather_coalesced_": _Call("all_gather"),
    "c10d::allgather_into_tensor_coalesced_": _Call("all_gather"),
    "c10d::reduce_scatter_": _Call("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": _Call("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": _Call("reduce_scatter", 1),
    "c10d::alltoall_": _Call("all_to_all", 1),
    "c10d::alltoall_base_": _Call("all_to_all", 1),
    "c10d::gather_": _Call("gather", 1, is_part=True),
    "c10d::scatter_": _Call("scatter", 0, is_part=True),
    "_c10d_functional::all_reduce": _Call("all_reduce"),
    "_c10d_functional::all_reduce_": _Call("all_reduce"),
    "_c10d_functional::all_reduce_coalesced": _Call("all_reduce"),
    "_c10d_functional::all_gather_into_tensor": _Call("all_gather", is_part=True),
    "_c10d_functional::all_gather_into_tensor_out": _Call("all_gather", is_part=True),
    "_c10d_functional::all_gather_into_tensor_coalesced": _Call("all_gather", is_part=True),
    "_c10d_functional::reduce_scatter_tensor": _Call("reduce_scatter"),
    "_c10d_functional::reduce_scatter_tensor_coalesced": _Call("reduce_scatter"),
    "_c10d_functional::all_to_all_single": _Call("all_to_all"),
    "_c10d_functional::broadcast": _Call("broadcast"),
    "_c10d_functional::broadcast_": _Call("broadcast"),
}
"""By operation, in the names of torch 2.11 to 2.13 (c10d/Ops.cpp, c10d/Functional.cpp)."""


class HearingCounter(StorageCounter):
    """Counts storages, and tells `heard` of every collective."""

    def __init__(self, observe: Callable[[], Any], heard: CollectiveListener, ranks_per_node: int) -> None:
        super().__init__(observe)
        self._heard = heard
        self._ranks_per_node = ranks_per_node
        self._nodes: dict[str, int] = {}

    def _listener(self, func: Any) -> Listener | None:
        call = _CALLS.get(func._schema.name)
        return None if call is None else lambda args, _kwargs, out: self._hear(func, call, args, out)

    def _hear(self, func: Any, call: _Call, args: tuple[Any, ...], out: Any) -> None:
        group = _group(args)
        ranks = int(group.size())
        nbytes = 0 if call.kind == "barrier" else sum(tensor.nbytes for tensor in tensors_in(args[call.argument]))
        waited = self._heard(call.kind, ranks, nbytes * (ranks if call.is_part else 1), self._num_nodes(group))
        self._began(func, args, out, waited)

    def _began(self, func: Any, args: tuple[Any, ...], out: Any, waited: Any) -> None:
        """A collective, by the operation that gave `out`; `waited` is what `heard` gave, for those who wait for it."""

    def _num_nodes(self, group: Any) -> int:
        """Nodes that the group's ranks lie on."""
        name = group.group_name
        if name not in self._nodes:
            ranks = dist.get_process_group_ranks(group)
            self._nodes[name] = len({rank // self._ranks_per_node for rank in ranks})
        return self._nodes[name]


def _group(args: tuple[Any, ...]) -> Any:
    """The group that an operation names: `c10d` holds the group itself, `_c10d_functional` its name, last."""
    boxes: list[Any] = [value for value in args if isinstance(value, torch.ScriptObject)]  # torch leaves them untyped
    for box in boxes:
        if box._type().name() == "ProcessGroup":
            return dist.ProcessGroup.unbox(box)
    names = [value for value in args if isinstance(value, str)]
    groups: Any = dist.distributed_c10d
    return groups._resolve_process_group(names[-1])
