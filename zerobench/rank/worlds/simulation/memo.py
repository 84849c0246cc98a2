"""Caches the layout of operations' results, so that equal operations are not computed again; reports collectives.

An engine's step repeats few distinct operations very often, since the layers of a transformer are alike. torch's
FakeTensorMode has its own cache; its keys have twenty fields a tensor where shape, strides, type and device decide, and
it excludes results that are lists or unsafe views. This cache stores how to make a result: the argument that it is, the
argument whose storage it shares at some offset, or shape, strides and type of a new one. Engines flatten parameters
into one buffer, so that parameters of two layers differ only in their offsets.

Functional collectives (`_c10d_functional`, used by DTensor) return new tensors. On tensors without bytes torch computes
their shapes and calls no group, so they are reported from here, with the same figures as in the other worlds
(worlds/instant_group.py): kind, ranks of the group, bytes of the whole message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined] # no public name
from torch.utils.flop_counter import flop_registry

from zerobench.rank.ledger.costs import runs_nothing

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
"""Kind of each operation, as in zerobench.records.records.CollectiveTraffic."""


def message(func: Any, args: tuple[Any, ...], result: torch.Tensor) -> tuple[str, int, int, int | None]:
    """Kind, ranks, bytes and nodes of one call of `func`, one of KINDS; its last argument names the group."""
    whole: torch.Tensor = result if func in _OF_RESULT else args[0]
    group: Any = _resolve_process_group(args[-1])
    return KINDS[func], group.size(), whole.nbytes, group.num_nodes()


_META = torch.device("meta")
_UNKEYED = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_ATEN = torch.ops.aten
_PLACED = (_ATEN.as_strided.default, _ATEN.view.dtype, _ATEN.view_as_complex.default, _ATEN.view_as_real.default)
"""Operations whose result has a given offset, or an offset in another type; other results move with their argument."""
_SEEN = (_ATEN.as_strided.default, _ATEN.detach.default, _ATEN.slice.Tensor, _ATEN.view.default)
_LIFTS = (_ATEN.lift_fresh.default, _ATEN.lift_fresh_copy.default)

Make = Callable[[list[FakeTensor]], Any]
"""Makes the result of an operation from its tensors, in order."""


class NoKeyError(Exception):
    """The result of an operation does not follow from the shapes of its arguments."""


@dataclass(slots=True)
class _Output:
    """Recipe of one tensor of a result."""

    argument: int | None
    """Index of the tensor argument that is the result."""
    base: int | None
    """Index of the tensor argument whose storage it shares."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Offset in elements from the argument whose storage it shares."""
    dtype: torch.dtype
    device: torch.device
    state: dict[str, Any]
    """Attributes of a fake tensor."""

    def make(self, tensors: list[FakeTensor]) -> Any:
        if self.argument is not None:
            return tensors[self.argument]
        if self.base is None:
            elem = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=_META)
        else:
            base = tensors[self.base]
            elem = torch.empty((0,), dtype=self.dtype, device=_META)
            elem.set_(base.untyped_storage(), base.storage_offset() + self.offset, self.shape, self.stride)
        tensor = Tensor._make_subclass(
            FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=self.device
        )
        tensor.__dict__.update(self.state)
        return tensor


class Operation:
    """Cached properties of an operation: torch hashes its operations in Python."""

    def __init__(self, func: Any) -> None:
        self.formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
        """FLOP formula of the operation."""
        self.is_collective = func in KINDS
        self.is_placed = func in _PLACED
        self.is_seen = func in _SEEN
        """True for a view of one tensor that torch computes in C++, but FakeTensorMode in Python."""
        self.is_remembered = not any(tag in func.tags for tag in _UNKEYED) and func not in _LIFTS
        """True if shapes decide its results."""
        self.runs_nothing = runs_nothing(func)


def key_of(operation: Operation, args: Any, kwargs: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
    """Key of the result's layout; appends the operation's tensors to `tensors`, in order.

    Raises:
        NoKeyError: a tensor has a relevant value, or is not a simulated one.

    """
    key: list[Any] = [operation, torch.get_default_dtype()]
    _add(args, key, tensors)
    if kwargs:
        key.append(tuple(kwargs))
        _add(kwargs.values(), key, tensors)
    if operation.is_placed:
        key += (tensor.storage_offset() for tensor in tensors)
    return tuple(key)


def _add(values: Any, key: list[Any], tensors: list[FakeTensor]) -> None:
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if value.constant is not None:
                raise NoKeyError
            tensors.append(value)
            key += (value.shape, value.stride(), value.dtype, value.fake_device)
        elif kind is list or kind is tuple:
            key.append(len(value))
            _add(value, key, tensors)
        elif isinstance(value, Tensor):
            raise NoKeyError
        else:
            # The type is part of the key: 1 and 1.0 are equal and hash alike, but give results of different types.
            key += (kind, value)


def recipe(result: Any, tensors: list[FakeTensor]) -> Make | None:
    """Recipe of a result like this one; None if there is none."""
    if isinstance(result, FakeTensor):
        output = _describe(result, tensors)
        return None if output is None else output.make
    if isinstance(result, (list, tuple)):
        parts = [recipe(item, tensors) for item in result]
        gather: Any = getattr(result, "_make", type(result))  # a named tuple takes its parts one by one
        if all(part is not None for part in parts):
            return lambda given: gather([part(given) for part in parts if part is not None])
        return None
    return (lambda _: None) if result is None else None


def _describe(tensor: FakeTensor, tensors: list[FakeTensor]) -> _Output | None:
    argument = next((i for i, given in enumerate(tensors) if given is tensor), None)
    if argument is None and (tensor.constant is not None or tensor.layout is not torch.strided or tensor.is_conj()):
        return None
    storage = tensor.untyped_storage()
    sharing = (i for i, given in enumerate(tensors) if given.untyped_storage()._cdata == storage._cdata)
    base = next(sharing, None)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    if argument is None and base is None and storage.nbytes() != span * tensor.element_size():
        return None
    return _Output(
        argument,
        base,
        tuple(tensor.shape),
        tensor.stride(),
        0 if base is None else int(tensor.storage_offset() - tensors[base].storage_offset()),
        tensor.dtype,
        tensor.fake_device,
        dict(tensor.__dict__),
    )
