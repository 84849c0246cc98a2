"""Records the issue order of a user's own step on an emulated GPU, whatever it trains and however.

Nothing is known of such a program beforehand, so each product and each attention kernel is recorded with its data type,
convolutions as the products that they are, and operators of other libraries by the bytes that they read and write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from zerobench.estimate.clock.trace import Attention, EventWait
from zerobench.rank.ledger.costs import Cost, Where, cost_of, flops_of
from zerobench.rank.ledger.emulated_order import EmulatedCounter, EmulatedOrder, current_stream
from zerobench.rank.ledger.order import Order
from zerobench.rank.ledger.storages import Listener, tensors_in
from zerobench.rank.ledger.traffic import Traffic

MOST_ITEMS = 250_000
"""A longer step is not recorded: some 50 MB of Python's. A 70B's step with 16 micro-batches has 80,000."""
_ATEN = torch.ops.aten
_ATTENTION = ("_scaled_dot_product_", "_flash_attention_", "_efficient_attention_", "_cudnn_attention_")
_CONVOLUTIONS = (_ATEN.convolution, _ATEN.convolution_backward)
_SCALED = (_ATEN._scaled_mm, _ATEN._grouped_mm, _ATEN._scaled_grouped_mm)
_POINT_TO_POINT = {"c10d::send": "send", "c10d::recv_": "recv", "c10d::recv_any_source_": "recv"}
_NO_KERNELS = {"aten", "c10d", "_c10d_functional", "prims", "prim", "profiler", "rngprims", "inductor", "debugprims"}
"""Namespaces of torch whose operators are charged above, or run no kernel."""


class ScriptOrder:
    """The order of one script's steady step: a counter for the ledger, and what no operation shows."""

    def __init__(self, ranks_per_node: int, *, waits_at_the_end: bool) -> None:
        """`waits_at_the_end`: of backward, for all collectives that it began, as DDP does."""
        self.traffic = Traffic()
        self.problem: str | None = None
        """Why there is no trace, where recording failed."""
        self._order = Order(self.traffic, current_stream, most_items=MOST_ITEMS)
        self._issued = _DetailedOrder(self._order, waits_at_the_end=waits_at_the_end)
        self._ranks_per_node = ranks_per_node

    def counter(self, observe: Callable[[], Any]) -> EmulatedCounter:
        """The ledger's count of storages, which hears of every operation."""
        return _ScriptCounter(observe, self.traffic, self._ranks_per_node, self._issued, self._give_up)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of events and of waits while a step is open; afterwards torch's methods are its own again."""
        self._issued.install()
        synchronize = torch.cuda.synchronize

        @wraps(synchronize)
        def synchronized(device: Any = None) -> None:
            synchronize(device)
            self._order.issue(EventWait(None, None))

        torch.cuda.synchronize = synchronized
        try:
            yield
        finally:
            torch.cuda.synchronize = synchronize
            self._issued.restore()
            self.traffic.is_between = False

    def trace(self) -> str | None:
        """The step, packed; None where it was not recorded, or not whole."""
        return None if self.problem is not None else self.traffic.trace()

    def _give_up(self, error: Exception) -> None:
        """A fault of the recorder's own ends the recording, and never the training."""
        self.problem = self.problem or f"{type(error).__name__}: {error}"


class _DetailedOrder(EmulatedOrder):
    """Charges kernels with their data types."""

    def listener(self, func: Any) -> Listener | None:
        packet, name, formula = func._overloadpacket, func._schema.name, flop_registry.get(func._overloadpacket)
        if formula is not None and any(part in name for part in _ATTENTION):
            is_backward = name.endswith("_backward")
            return lambda args, kwargs, out: self._attend(func, formula, args, kwargs, out, is_backward=is_backward)
        if packet in _CONVOLUTIONS:
            return lambda args, _kwargs, out: self._convolve(args, out, is_backward=packet is not _ATEN.convolution)
        if packet in _SCALED:
            return lambda args, _kwargs, _out: self._scale(args)
        if func.namespace not in _NO_KERNELS and not func.is_view:
            return self._foreign
        return super().listener(func)

    def _charge(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        cost = cost_of(func, args, kwargs, out) if self._order.is_open else None
        if cost is not None:
            self._order.charge(cost, _dtype(args) if cost.product is not None else "")

    def _attend(self, func: Any, formula: Any, args: Any, kwargs: Any, out: Any, *, is_backward: bool) -> None:
        if not self._order.is_open:
            return
        names = [argument.name for argument in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        query, key = given["query"], given["key"]
        kind = Attention(query.shape[-1], key.shape[-2], bool(given.get("is_causal")), is_backward, _dtype([query]))
        self._order.attention(flops_of(formula, args, kwargs, out), is_backward=is_backward, kind=kind)

    def _convolve(self, args: Any, out: Any, *, is_backward: bool) -> None:
        if not self._order.is_open:
            return
        first = 1 if is_backward else 0  # the output's gradient comes first in backward
        image, weight = args[first], args[first + 1]
        result = args[0] if is_backward else out
        is_transposed, groups = args[6 + first], args[8 + first]
        small = image if is_transposed else result  # of the two the one whose positions the kernel visits
        positions = small.shape[0] * math.prod(small.shape[2:])
        outer, inner = weight.shape[0] // groups, math.prod(weight.shape[1:])
        moved = sum(tensor.nbytes for tensor in tensors_in([image, weight, result]))
        if groups > 1 and 1 in (outer, weight.shape[1]):  # depthwise: memory-bound, each channel by itself
            costs = [Cost(Where.DEVICE, moved_bytes=moved)] * (sum(map(bool, args[10][:2])) if is_backward else 1)
        elif is_backward:
            shapes = [(positions, inner, outer), (outer, inner, positions)]
            costs = [
                Cost(Where.DEVICE, shape, groups) for shape, wanted in zip(shapes, args[10], strict=False) if wanted
            ]
        else:
            costs = [Cost(Where.DEVICE, (positions, outer, inner), groups)]
        for cost in costs:
            dtype = _dtype([image], rounds=torch.backends.cudnn.allow_tf32)
            self._order.charge(cost, "" if cost.product is None else dtype)

    def _scale(self, args: Any) -> None:
        """A product in 8 bits, or the products of a group: as one of all their rows."""
        left, right = args[0], args[1]
        shape = (math.prod(left.shape[:-1]), right.shape[-1], left.shape[-1])
        self._order.charge(Cost(Where.DEVICE, shape), _dtype([left]))

    def _foreign(self, args: Any, kwargs: Any, out: Any) -> None:
        """An operator of another library."""
        if not self._order.is_open:
            return
        tensors = [tensor for tensor in tensors_in([*args, *kwargs.values(), out]) if tensor.device.type == "cuda"]
        if tensors:
            self._order.charge(Cost(Where.DEVICE, moved_bytes=sum(tensor.nbytes for tensor in tensors)))


class _ScriptCounter(EmulatedCounter):
    """Counts storages and hears the order of work, sends and receives among it."""

    def __init__(
        self,
        observe: Callable[[], Any],
        traffic: Traffic,
        ranks_per_node: int,
        order: EmulatedOrder,
        give_up: Callable[[Exception], None],
    ) -> None:
        super().__init__(observe, traffic, ranks_per_node, order)
        self._traffic, self._failed = traffic, give_up

    def _listener(self, func: Any) -> Listener | None:
        if (kind := _POINT_TO_POINT.get(func._schema.name)) is not None:
            return self._guarded(lambda args, _kwargs, _out: self._pass(kind, args))
        listener = super()._listener(func)
        return None if listener is None else self._guarded(listener)

    def _pass(self, kind: str, args: Any) -> None:
        self._traffic.collective(kind, 2, sum(tensor.nbytes for tensor in tensors_in(args[0])))

    def _guarded(self, listener: Listener) -> Listener:
        def guarded(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            try:
                listener(args, kwargs, out)
            except Exception as error:  # noqa: BLE001 -- the script goes on whatever it is
                self._failed(error)

        return guarded


def _dtype(args: Any, *, rounds: bool | None = None) -> str:
    """Data type of the first tensor; tf32 where torch `rounds` fp32 for tensor cores (None: as set for products)."""
    dtype = next((value.dtype for value in args if isinstance(value, torch.Tensor)), torch.float32)
    if rounds is None:
        rounds = torch.get_float32_matmul_precision() != "highest"
    if dtype is torch.float32 and rounds:
        return "tf32"
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


_NAMES: dict[torch.dtype, str] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"} | {
    getattr(torch, name): "fp8" for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)
}
