"""Remembers what an operation's result looks like, so that equal operations need not be worked out again.

An engine's step repeats few distinct operations very often: a transformer's layers are alike. torch's FakeTensorMode
has a cache of its own for this; its keys hold twenty fields a tensor where shape, strides, type and device decide, and
it does not take results that are lists or unsafe views. What is remembered here is how to make the result: which
argument it is, whose storage it shares and how far behind it, or the shape, strides and type of a new one. Engines
flatten parameters into one buffer, so that those of two layers differ in nothing but where they lie in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import flop_registry

from zerobench.rank.ledger.costs import runs_nothing
from zerobench.rank.worlds.simulation.collectives import KINDS

_META = torch.device("meta")
_UNKEYED = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_ATEN = torch.ops.aten
_PLACED = (_ATEN.as_strided.default, _ATEN.view.dtype, _ATEN.view_as_complex.default, _ATEN.view_as_real.default)
"""Whose result lies at a given offset, or counts its own in another type: all others' move with their argument."""
_SEEN = (_ATEN.as_strided.default, _ATEN.detach.default, _ATEN.slice.Tensor, _ATEN.view.default)
_LIFTS = (_ATEN.lift_fresh.default, _ATEN.lift_fresh_copy.default)

Make = Callable[[list[FakeTensor]], Any]
"""From the operation's tensors, in order, to its result."""


class NoKeyError(Exception):
    """The operation's result cannot be told from its arguments' shapes."""


@dataclass(slots=True)
class _Output:
    """How to make one tensor of a result."""

    argument: int | None
    """The tensor argument that it is."""
    base: int | None
    """The tensor argument whose storage it shares."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Elements behind the argument whose storage it shares."""
    dtype: torch.dtype
    device: torch.device
    state: dict[str, Any]
    """What a fake tensor carries beside the tensor itself."""

    def make(self, tensors: list[FakeTensor]) -> Any:
        if self.argument is not None:
            return tensors[self.argument]
        if self.base is None:
            elem = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=_META)
        else:
            base = tensors[self.base]
            elem = torch.empty((0,), dtype=self.dtype, device=_META)
            elem.set_(base.untyped_storage(), base.storage_offset() + self.offset, self.shape, self.stride)
        made = Tensor._make_subclass(FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=self.device)
        made.__dict__.update(self.state)
        return made


class Operation:
    """What each call of an operation asks of it, found out once: torch hashes its operations in Python."""

    def __init__(self, func: Any) -> None:
        self.formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
        """Counts its FLOPs."""
        self.is_collective = func in KINDS
        self.is_placed = func in _PLACED
        self.is_seen = func in _SEEN
        """Whether it is a view of one tensor that torch knows in C++, and FakeTensorMode works out in Python."""
        self.is_remembered = not any(tag in func.tags for tag in _UNKEYED) and func not in _LIFTS
        """Whether shapes decide its results."""
        self.runs_nothing = runs_nothing(func)


def key_of(operation: Operation, args: Any, kwargs: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
    """What decides the result's looks, and the operation's tensors in order into `tensors`.

    Raises:
        NoKeyError: a tensor has a value that counts, or is not a simulated one.

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
            # 1 and 1.0 are equal and hash alike, and give results of different types.
            key += (kind, value)


def recipe(result: Any, tensors: list[FakeTensor]) -> Make | None:
    """How to make a result like this one; None where that is not known."""
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
