"""Reports collectives of real ranks (kind, group size, bytes) while the ledger is active.

Every call passes torch's dispatcher, even from C++ (DDP's reducer), so the dispatch mode that counts storages sees it:
`c10d::` for torch.distributed, `_c10d_functional::` for DTensor. Bytes have the same meaning as in the solo and
simulated worlds (rank/worlds/instant_group.py), where the group itself reports. Sends and receives are reported by the
strategies that make them (Job.heard), as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from zerobench.rank.ledger.storages import Listener, StorageCounter, tensors_in

CollectiveListener = Callable[[str, int, int, int | None], object]
"""Called with each collective: its kind, the size of its group, the bytes of its whole message, the group's nodes."""


@dataclass(frozen=True)
class _Call:
    """Rule that reads the bytes of the whole message from an operation's arguments."""

    kind: str
    argument: int = 0
    """Index of the argument with the message,"""
    is_part: bool = False
    """or with this rank's part of it."""


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
"""By operation, as named in torch 2.11 to 2.13 (c10d/Ops.cpp, c10d/Functional.cpp)."""


class HearingCounter(StorageCounter):
    """Counts storages, and calls `heard` with every collective."""

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
        """Hook for subclasses: a collective began and returned `out`; `waited`, from `heard`, is for its waiters."""

    def _num_nodes(self, group: Any) -> int:
        """Number of nodes that the ranks of the group are on."""
        name = group.group_name
        if name not in self._nodes:
            ranks = dist.get_process_group_ranks(group)
            self._nodes[name] = len({rank // self._ranks_per_node for rank in ranks})
        return self._nodes[name]


def _group(args: tuple[Any, ...]) -> Any:
    """Group of an operation: `c10d` passes the group itself, `_c10d_functional` its name as last argument."""
    boxes: list[Any] = [value for value in args if isinstance(value, torch.ScriptObject)]  # torch leaves them untyped
    for box in boxes:
        if box._type().name() == "ProcessGroup":
            return dist.ProcessGroup.unbox(box)
    names = [value for value in args if isinstance(value, str)]
    groups: Any = dist.distributed_c10d
    return groups._resolve_process_group(names[-1])
