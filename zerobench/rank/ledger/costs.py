"""Cost of an operation on a real GPU: the shape of a product, or the bytes that its kernel moves.

Views and allocations cost nothing. Every other operation counts as one kernel that reads its arguments and writes its
results once each, like eager elementwise kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import (
    get_shape,
    sdpa_backward_flop,
    sdpa_backward_flop_count,
    sdpa_flop,
    sdpa_flop_count,
)

from zerobench.common.malloc import MAPPED_FROM_BYTES
from zerobench.estimate.clock.trace import Product

SIMULATED_DEVICE = "simgpu"
"""Device type of the simulated GPU (zerobench.rank.worlds.simulation.device)."""
_ATEN = torch.ops.aten
_FREE = {
    getattr(_ATEN, name)
    for name in (
        "empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view", "detach_", "set_",
        "resize_", "lift_fresh", "_reshape_alias", "t_", "record_stream", "is_pinned", "_local_scalar_dense",
    )
}  # fmt: skip
_MATRICES = {_ATEN.mm: 0, _ATEN.addmm: 1, _ATEN.bmm: 0, _ATEN.baddbmm: 1}
"""Index of the first matrix among the arguments."""
_FILLS = (_ATEN.copy_, _ATEN.fill_, _ATEN.zero_, _ATEN._foreach_copy_, _ATEN._foreach_zero_)
"""Operations that do not read their written arguments."""
_GATHERS = (_ATEN.embedding, _ATEN.nll_loss_forward, _ATEN.index_select, _ATEN.gather)
"""Operations that read as much as they write."""
_COPIES = (_ATEN.copy_, _ATEN._to_copy)
_CPU_ATTENTION: dict[Any, tuple[Callable[..., int], int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3),
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (sdpa_backward_flop_count, 4),
}
"""FLOP formulas of torch's fused attention on a CPU, which torch's own counter lacks, and their number of arguments."""


_ATTENTION = {sdpa_flop: 3, sdpa_backward_flop: 4}
"""torch's FLOP formulas of attention on a GPU: number of leading arguments, which end in queries, keys, values."""


class Where(StrEnum):
    """Unit that executes an operation."""

    DEVICE = "device"
    HOST = "host"
    UP = "up"
    """The link to the device."""
    DOWN = "down"


_DEVICES = {SIMULATED_DEVICE, "cuda"}
"""Device types: the simulated GPU's, and CUDA's for the emulated one."""


class Cost(NamedTuple):
    where: Where
    product: Product | None = None
    times: int = 1
    """Number of products of that shape."""
    moved_bytes: int = 0
    blocks: bool = False
    """True for a copy that the host waits for."""
    cast_bytes: int = 0
    """Bytes that the host reads and writes for a type cast within a blocking copy, in pageable memory. Non-blocking
    copies are cast on the device (aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda: `conversion_device`)."""
    mapped_bytes: int = 0
    """Bytes of new host memory that is large enough for malloc to map it."""
    attention_flops: int = 0
    is_backward: bool = False


VALUE = Cost(Where.DOWN, blocks=True)
"""Cost of reading a number from the device."""


def runs_nothing(func: Any) -> bool:
    """True for a view or an allocation."""
    return bool(func.is_view or func._overloadpacket in _FREE or func.namespace != "aten")


def cost_of(func: Any, args: Any, kwargs: Any, out: Any) -> Cost | None:
    """Cost of an operation; None if nothing runs."""
    packet = func._overloadpacket
    if runs_nothing(func):
        return None
    results = _tensors(out)
    if packet in _COPIES:
        source = args[1] if packet is _ATEN.copy_ else args[0]
        crossing = _crossing(source, results[0]) if isinstance(source, torch.Tensor) and results else None
        if crossing is not None:
            is_free = bool(kwargs.get("non_blocking", args[2] if packet is _ATEN.copy_ and len(args) > 2 else False))
            return _copied(crossing, source, results[0], blocks=not is_free)
    read, written = _touched(func, packet, args, kwargs, results)
    on_device = any(tensor.device.type in _DEVICES for tensor in (*results, *read, *written))
    where = Where.DEVICE if on_device else Where.HOST
    if packet in _MATRICES:
        left, right = args[_MATRICES[packet]], args[_MATRICES[packet] + 1]
        count = left.shape[0] if left.dim() == 3 else 1
        return Cost(where, (left.shape[-2], right.shape[-1], left.shape[-1]), count)
    if packet in _CPU_ATTENTION:
        count_flops, shapes = _CPU_ATTENTION[packet]
        flops = count_flops(*_expand_heads([argument.shape for argument in args[:shapes]]))
        return Cost(where, attention_flops=flops, is_backward=count_flops is sdpa_backward_flop_count)
    moved = sum(map(_held_bytes, written))
    moved += moved if packet in _GATHERS else sum(map(_held_bytes, read))
    mapped = 0 if on_device or written is not results else sum(map(_mapped, results))
    return Cost(where, moved_bytes=moved, mapped_bytes=mapped)


def _copied(crossing: Where, source: torch.Tensor, result: torch.Tensor, *, blocks: bool) -> Cost:
    moved = result if (crossing is Where.UP) == blocks else source
    if not blocks or source.dtype == result.dtype:
        return Cost(crossing, moved_bytes=moved.nbytes, blocks=blocks)
    cast = source.nbytes + result.nbytes
    return Cost(crossing, moved_bytes=moved.nbytes, blocks=True, cast_bytes=cast, mapped_bytes=_mapped(moved))


def _mapped(tensor: torch.Tensor) -> int:
    return tensor.nbytes if tensor.nbytes >= MAPPED_FROM_BYTES else 0


def flops_of(formula: Any, args: Any, kwargs: Any, out: Any) -> int:
    """FLOPs by one of torch's formulas. Shapes are passed directly: its wrapper (torch/utils/flop_counter.py,
    shape_wrapper) searches tensors at any depth, but these operations have them at the top level.
    """
    of_shapes = getattr(formula, "__wrapped__", None)
    if of_shapes is None:
        return int(formula(*args, **kwargs, out_val=out))
    shapes = tuple(map(get_shape, out)) if isinstance(out, tuple) else get_shape(out)
    named = {name: get_shape(value) for name, value in kwargs.items()}
    arg_shapes, attended = list(map(get_shape, args)), _ATTENTION.get(formula, 0)
    return int(of_shapes(*_expand_heads(arg_shapes[:attended]), *arg_shapes[attended:], out_shape=shapes, **named))


def _expand_heads(shapes: list[torch.Size]) -> list[torch.Size]:
    """Give keys and values, the last two shapes, as many heads as queries: grouped heads cost the same, but torch 2.11
    refuses to count them.
    """
    return [
        torch.Size((shape[0], shapes[-3][1], *shape[2:])) if at >= len(shapes) - 2 else shape
        for at, shape in enumerate(shapes)
    ]


def _crossing(source: torch.Tensor, result: torch.Tensor) -> Where | None:
    on_device = source.device.type in _DEVICES, result.device.type in _DEVICES
    return {(True, False): Where.DOWN, (False, True): Where.UP}.get(on_device)


def _touched(
    func: Any, packet: Any, args: Any, kwargs: Any, results: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors that a kernel reads, and those that it writes."""
    read, written, changed = [], [], False
    for index, (name, is_written) in enumerate(_arguments(func)):
        tensors = _tensors(args[index] if index < len(args) else kwargs.get(name))
        if is_written:
            written += tensors
            changed = True
        if not (is_written and packet in _FILLS):
            read += tensors
    return read, written if changed else results


@cache
def _arguments(func: Any) -> tuple[tuple[str, bool], ...]:
    """Names of an operation's arguments, and whether it writes to each; cached, since steps have many operations."""
    return tuple(
        (argument.name, argument.alias_info is not None and argument.alias_info.is_write)
        for argument in func._schema.arguments
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    """Tensors in an argument or result: a tensor, or nested lists of them."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, list | tuple) else []


def _held_bytes(tensor: torch.Tensor) -> int:
    """Bytes of distinct elements; an expanded tensor repeats some."""
    if tensor.is_contiguous():
        return tensor.nbytes
    numel = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numel *= size if stride else 1
    return numel * tensor.element_size() if tensor.numel() else 0
