"""The issue order of an optimizer step: what an engine gave to its GPU, links and drives, and what waits for what.

A simulated or emulated rank runs the real engine, so each operation, collective, copy and wait passes through it in the
order in which the host issues them. Between two of the others operations on a stream become one piece of work: its
products by shape, its attention by FLOPs, all else by the bytes that it reads and writes, and how many kernels that is.
Layers are alike, so each distinct piece is kept once. What is kept has no seconds: those come from the rates of a GPU
and its links when it is replayed (replay.py).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Product = tuple[int, int, int]
"""Rows, columns and the inner dimension."""


class Attention(NamedTuple):
    """What decides the rate of a fused kernel of attention beside its FLOPs."""

    head_size: int
    positions: int
    """Keys of a sequence."""
    is_causal: bool
    is_backward: bool
    dtype: str


class Work(NamedTuple):
    """Kernels on one stream, one after another."""

    products: tuple[tuple[Product, int], ...]
    """Each shape, and how often."""
    attention: tuple[int, int]
    """FLOPs of fused attention forward and backward, as torch counts them: no mask hides any."""
    moved_bytes: int
    """Read and written by all other kernels."""
    launches: int
    dtypes: tuple[str, ...] = ()
    """Data type of each of `products`; empty: the trial's precision."""
    attentions: tuple[tuple[Attention, int], ...] = ()
    """The kernels of `attention`, and FLOPs of each kind; empty: causal, in the trial's precision."""


FIRST_STREAM = 0
"""On which a model computes."""


class Kernels(NamedTuple):
    """Work on a stream."""

    stream: int
    work: int
    """Its number among the trace's."""


class Call(NamedTuple):
    """A collective, which begins once its stream has come to it, and goes on beside the stream."""

    stream: int
    kind: str
    group_size: int
    num_nodes: int | None
    message_bytes: int


class CollectiveWait(NamedTuple):
    """The stream goes on once a collective has ended."""

    stream: int
    call: int
    """Its number among the step's."""


class EventRecord(NamedTuple):
    """An event happens when the stream has come to it."""

    stream: int
    event: int


class EventWait(NamedTuple):
    """The stream, or the host where that is None, goes on once an event has happened."""

    stream: int | None
    event: int | None
    """None: all that was issued."""


class HostCopy(NamedTuple):
    """A copy between host and device, on a stream; the host waits for its end where it `blocks`."""

    stream: int
    is_up: bool
    """To the device."""
    nbytes: int
    blocks: bool
    is_paged: bool = False
    """Whether the host's memory is not page-locked."""


class Host(NamedTuple):
    """Work of the host's own processor, which waits for it: bytes read and written."""

    nbytes: int


class Drive(NamedTuple):
    """Bytes read from and written to NVMe beside the host's work, which goes on at once."""

    read_bytes: int
    written_bytes: int


class DriveWait(NamedTuple):
    """The host waits for what it had the drives read, write, or both."""

    reads: bool = True
    writes: bool = True


class DeviceWork(NamedTuple):
    """Kernels on the current stream that no operation of torch shows: bytes read and written, and how many."""

    moved_bytes: int
    launches: int


class PageMapping(NamedTuple):
    """Memory of the host that is mapped anew: its kernel fills each page with zeros when it is first written."""

    nbytes: int


class PhaseStart(NamedTuple):
    """A phase of the step begins (zerobench.common.vocabulary.Phase)."""

    phase: str


Item = (
    Kernels
    | Call
    | CollectiveWait
    | EventRecord
    | EventWait
    | HostCopy
    | Host
    | Drive
    | DriveWait
    | PhaseStart
    | PageMapping
)
_ITEMS: tuple[type[Any], ...] = (
    Kernels, Call, CollectiveWait, EventRecord, EventWait, HostCopy, Host, Drive, DriveWait, PhaseStart, PageMapping
)  # fmt: skip
_PLAIN_FIELDS = 4
"""Of a work without data types."""
_NUMBERS = {kind: number for number, kind in enumerate(_ITEMS)}
FORWARD = "forward"
"""The phase that each micro-batch begins with (zerobench.common.vocabulary.Phase)."""
BACKWARD = "backward"
UPDATE = "step"
"""The phase after the passes."""
_LARGEST_BYTES = 1 << 26
"""Of a trace when it is unpacked: a record of ours has less by far."""


@dataclass(frozen=True)
class StepTrace:
    """One steady step of one rank."""

    works: tuple[Work, ...]
    items: tuple[Item, ...]

    def in_phases(self) -> Iterator[tuple[str, Item]]:
        """Each item with the phase that it belongs to."""
        phase = ""
        for item in self.items:
            if isinstance(item, PhaseStart):
                phase = item.phase
            yield phase, item

    @property
    def micro_batches(self) -> int:
        """How many passes it has."""
        return sum(item == PhaseStart(FORWARD) for item in self.items)

    def lengthened(self, more: int) -> StepTrace:
        """The step with its last micro-batch but one `more` times again: of three neither the one that makes gradients
        nor the one that hands them on. It needs two.
        """
        *_, begin, end = (at for at, item in enumerate(self.items) if item == PhaseStart(FORWARD))
        again = self.items[begin:end]
        calls = sum(isinstance(item, Call) for item in again)
        repeated = [item for number in range(more) for item in _later(again, (number + 1) * calls)]
        return StepTrace(self.works, (*self.items[:end], *repeated, *_later(self.items[end:], more * calls)))

    def of_more_tokens(self, tokens: int, times: int, *, messages: bool) -> StepTrace:
        """The step with micro-batches `times` as large, of `tokens` now; its update stays, and so does what engines do
        with parameters and gradients on streams of their own. `messages`: collectives of the passes carry tokens, not
        parameters.
        """
        longer = tuple(_of_more_tokens(work, tokens, times) for work in self.works)
        items: list[Item] = []
        for phase, item in self.in_phases():
            if isinstance(item, Kernels) and phase != UPDATE and item.stream == FIRST_STREAM:
                items.append(item._replace(work=len(self.works) + item.work))
            elif isinstance(item, Call) and messages and phase != UPDATE:
                items.append(item._replace(message_bytes=times * item.message_bytes))
            else:
                items.append(item)
        return StepTrace((*self.works, *longer), tuple(items))

    def pack(self) -> str:
        """Text for a record: a few kilobytes, since layers repeat."""
        items = [[_NUMBERS[type(item)], *item] for item in self.items]
        works = [work if work.dtypes or work.attentions else work[:_PLAIN_FIELDS] for work in self.works]
        plain = json.dumps([works, items], separators=(",", ":")).encode()
        return base64.b64encode(zlib.compress(plain, 9)).decode("ascii")


def _of_more_tokens(work: Work, tokens: int, times: int) -> Work:
    """Kernels over so many more tokens: a product has them in one dimension, or is of a part of them."""
    products: Counter[Product] = Counter()
    for shape, count in work.products:
        at = next((index for index in (0, 2, 1) if shape[index] == tokens), None)
        if at is None:
            products[shape] += times * count
        else:
            products[(*shape[:at], times * tokens, *shape[at + 1 :])] += count  # type: ignore[index] # three of them
    forward, backward = work.attention
    attention = times * forward, times * backward
    return Work(tuple(sorted(products.items())), attention, times * work.moved_bytes, work.launches)


def _later(items: Iterable[Item], calls: int) -> Iterator[Item]:
    """`items` after so many more calls: events happen again under their numbers, calls have one each."""
    for item in items:
        yield item._replace(call=item.call + calls) if isinstance(item, CollectiveWait) else item


def unpack(text: str) -> StepTrace:
    """The trace of `StepTrace.pack`. Raises ValueError: it is none."""
    try:
        opened = zlib.decompressobj()
        works, items = json.loads(opened.decompress(base64.b64decode(text, validate=True), _LARGEST_BYTES))
        return StepTrace(
            tuple(_unpacked(*work) for work in works),
            tuple(_ITEMS[kind](*fields) for kind, *fields in items),
        )
    except (ValueError, zlib.error, TypeError, IndexError, RecursionError) as error:
        raise ValueError(f"no trace of a step: {error}") from error


def _unpacked(products: Any, attention: Any, moved: int, launches: int, dtypes: Any = (), attentions: Any = ()) -> Work:
    return Work(
        tuple((tuple(shape), count) for shape, count in products),
        tuple(attention),
        moved,
        launches,
        tuple(dtypes),
        tuple((Attention(*kernel), flops) for kernel, flops in attentions),
    )


_listener: Callable[[Item | DeviceWork], None] | None = None


def listen(listener: Callable[[Item | DeviceWork], None]) -> None:
    """Let `listener` hear what is issued that no operation on tensors shows: waits, engines' own kernels, drives."""
    global _listener  # noqa: PLW0603 -- one for the process
    _listener = listener


def tell(item: Item | DeviceWork) -> None:
    """Hand `item` to the listener, if there is one."""
    if _listener is not None:
        _listener(item)


@dataclass
class Recorder:
    """Takes down one step as it is issued."""

    most_items: int | None = None
    """A longer step is given up; None: any is recorded."""
    _works: dict[Work, int] = field(default_factory=dict)
    _items: list[Item] = field(default_factory=list)
    _calls: int = 0
    _open: int | None = None
    """The stream whose work is gathered."""
    _products: Counter[tuple[Product, str]] = field(default_factory=Counter)
    _attentions: Counter[Attention] = field(default_factory=Counter)
    _attention: list[int] = field(default_factory=lambda: [0, 0])
    _moved: int = 0
    _launches: int = 0

    def kernel(
        self,
        stream: int,
        product: Product | None = None,
        moved_bytes: int = 0,
        count: int = 1,
        launches: int = 1,
        dtype: str = "",
    ) -> None:
        """A matrix product (`count` of them in a batch), or what moves bytes, in one kernel or so many."""
        self._gather(stream)
        self._launches += launches
        if product is None:
            self._moved += moved_bytes
        else:
            self._products[product, dtype] += count

    def attention(self, stream: int, flops: int, *, is_backward: bool, kind: Attention | None = None) -> None:
        """A fused kernel of attention."""
        self._gather(stream)
        self._launches += 1
        self._attention[is_backward] += flops
        if kind is not None:
            self._attentions[kind] += flops

    @property
    def is_given_up(self) -> bool:
        """Whether the step has more items than are kept."""
        return self.most_items is not None and len(self._items) > self.most_items

    def call(self, stream: int, kind: str, group_size: int, num_nodes: int | None, message_bytes: int) -> int:
        """A collective; gives its number, for what waits for it."""
        self.add(Call(stream, kind, group_size, num_nodes, message_bytes))
        self._calls += 1
        return self._calls - 1

    def add(self, item: Item) -> None:
        """What is not a kernel; host work adds up."""
        self._close()
        last = self._items[-1] if self._items else None
        if isinstance(item, Host) and isinstance(last, Host):
            self._items[-1] = Host(last.nbytes + item.nbytes)
        elif not self.is_given_up:
            self._items.append(item)

    def trace(self) -> StepTrace | None:
        """All so far; None where nothing was issued, or too much."""
        self._close()
        return StepTrace(tuple(self._works), tuple(self._items)) if self._items and not self.is_given_up else None

    def _gather(self, stream: int) -> None:
        if self._open != stream:
            self._close()
            self._open = stream

    def _close(self) -> None:
        if self._open is None:
            return
        by_type = sorted(self._products.items())
        work = Work(
            tuple((product, count) for (product, _), count in by_type),
            (self._attention[0], self._attention[1]),
            self._moved,
            self._launches,
            tuple(dtype for (_, dtype), _ in by_type) if any(dtype for _, dtype in self._products) else (),
            tuple(sorted(self._attentions.items())),
        )
        if not self.is_given_up:
            self._items.append(Kernels(self._open, self._works.setdefault(work, len(self._works))))
        self._open = None
        self._products.clear()
        self._attentions.clear()
        self._attention, self._moved, self._launches = [0, 0], 0, 0
