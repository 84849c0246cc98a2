"""What of an emulated rank's order no operation shows: torch's own streams and events, and who waits for a collective.

All of them pass Python: DeepSpeed's and FSDP2's streams are torch.cuda's, and they wait for the `Work` that NCCL's
group gave them. DDP's reducer alone waits in C++, at the end of backward (csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.flop_counter import flop_registry

from zerobench.estimate.clock.trace import EventRecord, EventWait
from zerobench.rank.ledger.costs import VALUE, cost_of, flops_of, runs_nothing
from zerobench.rank.ledger.heard_collectives import HearingCounter
from zerobench.rank.ledger.order import Order
from zerobench.rank.ledger.storages import Listener
from zerobench.rank.ledger.traffic import Traffic

_ATTENTION = "_scaled_dot_product_"
_ITEM = torch.ops.aten._local_scalar_dense.default
_NUMBER = "_zerobench_event"

_streams: dict[int, int] = {0: 0}
"""Numbers of streams by their addresses; the default one has none."""


def current_stream() -> int:
    """The number of the stream that work is given to now."""
    return _number(torch._C._cuda_getCurrentRawStream(0))


def _number(address: int) -> int:
    return _streams.setdefault(address, len(_streams))


class EmulatedOrder:
    """Lets `order` hear all of it, from `install` until `restore`."""

    def __init__(self, order: Order, *, waits_at_the_end: bool) -> None:
        """`waits_at_the_end`: of backward, for all collectives that it began."""
        self._order, self._waits_at_the_end = order, waits_at_the_end
        self._under_way: dict[int, tuple[Any, Callable[[], None]]] = {}
        self._events = count()
        self._replaced: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Replace the methods of torch that record events and wait."""
        self._watch_events()
        self._watch_works()

    def restore(self) -> None:
        """Put torch's own methods back."""
        while self._replaced:
            setattr(*self._replaced.pop())
        self._under_way.clear()

    def _replace(self, owner: Any, name: str, function: Any) -> None:
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, function)

    def listener(self, func: Any) -> Listener | None:
        """Who hears of each call of an operation that is no collective."""
        formula, name = flop_registry.get(func._overloadpacket), func._schema.name
        if func._schema.name == "_c10d_functional::wait_tensor":
            return lambda _args, _kwargs, _out: self._awaited_all()
        if func is _ITEM:
            return lambda args, _kwargs, _out: self._order.charge(VALUE) if args[0].is_cuda else None
        if _ATTENTION in name and formula is not None:
            is_backward = name.endswith("_backward")
            return lambda args, kwargs, out: self._order.attention(
                flops_of(formula, args, kwargs, out), is_backward=is_backward
            )
        return None if runs_nothing(func) else lambda args, kwargs, out: self._charge(func, args, kwargs, out)

    def _charge(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        cost = cost_of(func, args, kwargs, out) if self._order.is_open else None
        if cost is not None:
            self._order.charge(cost)

    def began(self, func: Any, args: Sequence[Any], out: Any, waited: Callable[[], None]) -> None:
        """A collective, by an operation that gave `out`; `waited` is for those who wait for it.

        NCCL's group runs what is not asynchronous on the stream that is current, and gives no work to wait for.
        """
        given = out if isinstance(out, tuple) else (out,)
        boxes = [value for value in given if isinstance(value, torch.ScriptObject)]
        in_backward = torch._C._current_graph_task_id() >= 0
        if boxes and not _is_asynchronous(func, args):
            waited()
        elif self._waits_at_the_end and not in_backward:
            waited()  # DDP, in C++, as it tells other ranks how it deals its buckets anew
        elif self._waits_at_the_end:
            torch.autograd.Variable._execution_engine.queue_callback(waited)
        else:
            work: Any = dist.Work.unbox(boxes[-1]) if boxes else waited
            self._under_way[id(work)] = work, waited

    def _awaited_all(self) -> None:
        while self._under_way:
            self._under_way.pop(next(iter(self._under_way)))[1]()

    def _watch_works(self) -> None:
        wait = dist.Work.wait

        def waited(work: Any, *args: Any, **kwargs: Any) -> Any:
            done = wait(work, *args, **kwargs)
            if (entry := self._under_way.pop(id(work), None)) is not None:
                entry[1]()
            return done

        self._replace(dist.Work, "wait", waited)

    def _watch_events(self) -> None:
        event: Any = torch.cuda.Event
        record, wait, synchronize = event.record, event.wait, event.synchronize

        def recorded(event: Any, stream: Any = None) -> None:
            record(event, stream)
            setattr(event, _NUMBER, next(self._events))
            self._order.issue(EventRecord(_of(stream), getattr(event, _NUMBER)))

        def waits(event: Any, stream: Any = None) -> None:
            wait(event, stream)
            if hasattr(event, _NUMBER):
                self._order.issue(EventWait(_of(stream), getattr(event, _NUMBER)))

        def synchronized(event: Any) -> None:
            synchronize(event)
            if hasattr(event, _NUMBER):
                self._order.issue(EventWait(None, getattr(event, _NUMBER)))

        for name, function in (("record", recorded), ("wait", waits), ("synchronize", synchronized)):
            self._replace(event, name, function)
        stream_class: Any = torch.cuda.Stream
        stream_synchronize = stream_class.synchronize

        def stream_synchronized(stream: Any) -> None:
            stream_synchronize(stream)
            stream.record_event().synchronize()

        self._replace(stream_class, "synchronize", stream_synchronized)

    def watch_engine(self) -> None:
        """DeepSpeed waits for the whole device through its accelerator."""
        from deepspeed.accelerator import get_accelerator

        accelerator: Any = type(get_accelerator())
        synchronize = accelerator.synchronize

        def synchronized(accelerator: Any, device_index: int | None = None) -> Any:
            done = synchronize(accelerator, device_index)
            self._order.issue(EventWait(None, None))
            return done

        accelerator.synchronize = synchronized


def _is_asynchronous(func: Any, args: Sequence[Any]) -> bool:
    """By the argument of torch's operations of this name (c10d/Ops.cpp), which has a default."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
    return bool(given.get("async_op", True))


def _of(stream: Any) -> int:
    return current_stream() if stream is None else _number(stream.cuda_stream)


class EmulatedCounter(HearingCounter):
    """Counts storages on device and host, and hears the order of work."""

    def __init__(self, observe: Callable[[], Any], traffic: Traffic, ranks_per_node: int, order: EmulatedOrder) -> None:
        super().__init__(observe, traffic.collective, ranks_per_node)
        self._count_flops = traffic.add_flops
        self._order = order

    def _listener(self, func: Any) -> Listener | None:
        heard, formula = super()._listener(func), flop_registry.get(func._overloadpacket)
        if heard is not None:
            return heard
        issued = self._order.listener(func)
        if formula is None:
            return issued

        def listens(args: Any, kwargs: Any, out: Any) -> None:
            self._count_flops(flops_of(formula, args, kwargs, out))
            if issued is not None:
                issued(args, kwargs, out)

        return listens

    def _began(self, func: Any, args: tuple[Any, ...], out: Any, waited: Any) -> None:
        if waited is not None:
            self._order.began(func, args, out, waited)
