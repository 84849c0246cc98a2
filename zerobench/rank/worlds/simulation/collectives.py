"""Functional collectives of a simulation: heard here, since none reaches a process group.

DTensor communicates by operations of torch.distributed's own (`_c10d_functional`), which give new tensors. On tensors
without bytes torch works out their results' shapes and calls no group. Each is heard as the group of one rank in the
other worlds hears it (worlds/instant_group.py): its kind, the ranks of its group, the bytes of its whole message.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined] # no public name

_OPERATIONS = torch.ops._c10d_functional

_OF_RESULT = {_OPERATIONS.all_gather_into_tensor.default: "all_gather"}
_OF_INPUT = {
    _OPERATIONS.all_reduce.default: "all_reduce",
    _OPERATIONS.all_reduce_.default: "all_reduce",
    _OPERATIONS.reduce_scatter_tensor.default: "reduce_scatter",
    _OPERATIONS.all_to_all_single.default: "all_to_all",
    _OPERATIONS.broadcast.default: "broadcast",
}
KINDS: dict[Any, str] = _OF_RESULT | _OF_INPUT
"""By operation, the kind as in zerobench.records.records.CollectiveTraffic."""


def message(func: Any, args: tuple[Any, ...], result: torch.Tensor) -> tuple[str, int, int, int | None]:
    """Kind, ranks, bytes and nodes of one call of `func`, one of KINDS; the last of its arguments names the group."""
    whole: torch.Tensor = result if func in _OF_RESULT else args[0]
    group: Any = _resolve_process_group(args[-1])
    return KINDS[func], group.size(), whole.nbytes, group.num_nodes()
