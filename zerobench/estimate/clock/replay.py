"""A step's timeline: its issue order (trace.py) replayed on the host's clock, streams, links and drives.

The host issues items one after another, waits where the engine waits, and runs ahead of the GPU as far as the queue of
launches goes. A stream's kernels run in order, no earlier than they were issued; a collective begins once its stream
has come to it and the one before it has left the links, and goes on beside its stream until somebody waits for it.
Copies take turns on each direction of the host link, transfers on the drives. All clocks only ever move forward by sums
and maxima, so that nothing faster can make a step slower.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zerobench.estimate.clock.device import Device
from zerobench.estimate.clock.host import QUEUED_LAUNCHES, Head
from zerobench.estimate.clock.kernels import counted_attention_s, gemm_s
from zerobench.estimate.clock.trace import (
    FORWARD,
    UPDATE,
    Call,
    CollectiveWait,
    Drive,
    DriveWait,
    EventRecord,
    EventWait,
    Host,
    HostCopy,
    Item,
    Kernels,
    PageMapping,
    PhaseStart,
    StepTrace,
    Work,
)

UPDATE_CLASS = "update"
"""The class of all kernels in it."""
LATE_CLASS = "waiting for the host"
"""In which a stream has nothing to run, since the host has not launched it."""
POINT_TO_POINT = frozenset({"send", "recv"})
_ROUNDING_S = 1e-9
_PART = QUEUED_LAUNCHES // 8


@dataclass(frozen=True)
class Pace:
    """How fast all that a trace names goes."""

    device: Device
    slower: float
    """By which computing takes longer, since all ranks wait for the slowest."""
    launch_s: Mapping[str, float]
    """In which the host issues one kernel, by phase, a head's apart; of a phase that is not there: at once."""
    byte_s: Mapping[str, float]
    """Of elementwise work, by phase."""
    call_s: Callable[[Call], float]
    copied_bytes_per_s: float | None = None
    paged_shares: Mapping[bool, float] = field(default_factory=lambda: {True: 1.0, False: 1.0})
    """Of that, where the host's memory is not page-locked: to the device, and to the host."""
    host_bytes_per_s: float | None = None
    """This rank's share of the host memory's rate."""
    drive_bytes_per_s: float | None = None
    mapped_byte_s: float = 0.0
    """In which a byte of memory that is mapped anew is made ready."""
    head: Head | None = None
    """Last in a forward pass and first in backward; None: not told apart."""
    head_launch_s: float = 0.0

    @property
    def passes_slower(self) -> float:
        """By which the passes' kernels take longer than by themselves."""
        return self.slower * self.device.rates.in_programs

    def work_s(self, phase: str, work: Work) -> dict[str, float]:
        """Seconds of kernels by class."""
        products = sum(count * gemm_s(self.device, *shape) for shape, count in work.products)
        attention = sum(counted_attention_s(self.device, *work.attention))
        by_class = {"products": products, "attention": attention, "elementwise": work.moved_bytes * self.byte_s[phase]}
        slower = self.slower if phase == UPDATE else self.passes_slower
        return {name: seconds * slower for name, seconds in by_class.items() if seconds}

    def head_of(self, phase: str, work: Work) -> tuple[int, float]:
        """Launches and seconds of the output head in `work`, its loss with it."""
        if self.head is None or not (products := self.head.products(phase, work)):
            return 0, 0.0
        loss_s = self.head.loss_s * sum(count for _, count in products) * self.passes_slower
        return self.head.launched(phase, work), sum(self.work_s(phase, Work(products, (0, 0), 0, 0)).values()) + loss_s


class Span(NamedTuple):
    """Something that was under way."""

    lane: str
    """`compute`, `communication`, `to device`, `to host`, `host` or `drives`."""
    name: str
    phase: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One step as it was replayed."""

    spans: tuple[Span, ...]
    classes: Mapping[str, float]
    """Seconds of kernels by class: products, attention, elementwise, update; and of what waits for the host."""
    passes_s: float
    """Until the last kernel and collective of the passes has ended."""
    step_s: float

    def exposed(self) -> dict[str, float]:
        """Seconds of the passes in which no kernel runs and something else does, by collectives' kinds and lanes.

        Of what goes on beside a collective the collective is named.
        """
        computing = merged((span.start_s, span.end_s) for span in self.spans if span.lane == "compute")
        lanes: dict[str, list[Span]] = {"communication": []}
        for span in self.spans:
            if span.phase != UPDATE and span.lane != "compute":
                lanes.setdefault(span.lane, []).append(span)
        seconds: dict[str, float] = defaultdict(float)
        for spans in lanes.values():
            for span in spans:
                seconds[span.name] += sum(end - start for start, end in outside(span.start_s, span.end_s, computing))
            computing = merged((*computing, *((span.start_s, span.end_s) for span in spans)))
        return dict(seconds)

    def lanes(self, gap_s: float = 0.0) -> dict[str, list[tuple[float, float]]]:
        """When something is under way on each lane; what lies closer than `gap_s` is one.

        `exposed` is when a collective is and no kernel, in the update too.
        """
        spans_by_lane: dict[str, list[tuple[float, float]]] = {"compute": [], "communication": []}
        for span in self.spans:
            spans_by_lane.setdefault(span.lane, []).append((span.start_s, span.end_s))
        computing = merged(spans_by_lane["compute"])
        spans_by_lane["exposed"] = [
            part for span in merged(spans_by_lane["communication"]) for part in outside(*span, computing)
        ]
        return {lane: merged(spans, gap_s) for lane, spans in spans_by_lane.items() if spans}

    def total_s(self, lane: str, *, passes: bool = True) -> float:
        """Seconds of a lane's spans in the passes, or in the update."""
        return sum(
            span.end_s - span.start_s for span in self.spans if span.lane == lane and (span.phase != UPDATE) is passes
        )


def replay(trace: StepTrace, pace: Pace) -> Timeline | None:
    """The timeline of `trace`; None where the rate of something in it is not known."""
    clocks = _Clocks(trace.works, pace)
    for item in trace.items:
        if not clocks.take(item):
            return None
    return Timeline(
        tuple(clocks.spans),
        dict(clocks.classes),
        clocks.last_s if clocks.passes_s is None else clocks.passes_s,
        clocks.last_s,
    )


class _Clocks:
    """When each resource is free again."""

    def __init__(self, works: Sequence[Work], pace: Pace) -> None:
        self._pace, self._works = pace, works
        self._seconds: dict[tuple[str, int], dict[str, float]] = {}
        self._heads: dict[tuple[str, int], tuple[int, float]] = {}
        self._host = 0.0
        self._streams: dict[int, float] = defaultdict(float)
        self._lanes: dict[str, float] = defaultdict(float)
        self._events: dict[int, float] = {}
        self._ends: list[float] = []
        self._launched = 0
        self._queue: deque[tuple[int, float]] = deque()
        """Launches until then, and when the last of them has run."""
        self._phase = ""
        self.spans: list[Span] = []
        self.classes: dict[str, float] = defaultdict(float)
        self.passes_s: float | None = None

    @property
    def last_s(self) -> float:
        """When all is done."""
        return max((self._host, *self._streams.values(), *self._lanes.values()))

    def take(self, item: Item) -> bool:
        """Go on by one item; False where it cannot be timed."""
        match item:
            case Kernels(stream, work):
                self._kernels(stream, work)
            case Call():
                self._call(item)
            case CollectiveWait(stream, call):
                self._streams[stream] = max(self._streams[stream], self._ends[call])
            case EventRecord(stream, event):
                self._events[event] = max(self._streams[stream], self._host)
            case EventWait(stream, event):
                self._wait(stream, self.last_s if event is None else self._events.get(event, 0.0))
            case HostCopy():
                return self._copy(item)
            case Host(nbytes):
                if (seconds := _seconds(nbytes, self._pace.host_bytes_per_s)) is None:
                    return False
                self._host = self._occupy("host", "host memory", self._host, seconds)
            case Drive(read, written):
                times = [_seconds(nbytes, self._pace.drive_bytes_per_s) for nbytes in (read, written)]
                if None in times:
                    return False
                for name, seconds in zip(("NVMe reads", "NVMe writes"), times, strict=True):
                    self._occupy(name, name, self._host, seconds or 0.0)
            case DriveWait(reads, writes):
                for name, is_awaited in (("NVMe reads", reads), ("NVMe writes", writes)):
                    self._host = max(self._host, self._lanes[name] if is_awaited else 0.0)
            case PageMapping(nbytes):
                self._host = self._occupy("host", "mapped memory", self._host, nbytes * self._pace.mapped_byte_s)
            case PhaseStart(phase):
                if phase == UPDATE and self._phase != UPDATE:
                    self.passes_s = self.last_s
                self._phase = phase
        return True

    def _kernels(self, stream: int, number: int) -> None:
        key = self._phase, number
        if key not in self._seconds:
            self._seconds[key] = self._pace.work_s(self._phase, self._works[number])
            self._heads[key] = self._pace.head_of(self._phase, self._works[number])
        seconds = self._seconds[key]
        for name, value in seconds.items():
            self.classes[UPDATE_CLASS if self._phase == UPDATE else name] += value
        start, total_s = max(self._streams[stream], self._host), sum(seconds.values())
        launches, (head, head_s) = self._works[number].launches, self._heads[key]
        head_s = total_s if head == launches else min(head_s, total_s)
        launch_s = self._pace.launch_s.get(self._phase, 0.0)
        parts = [(launches - head, total_s - head_s, launch_s), (head, head_s, self._pace.head_launch_s)]
        for part in parts if self._phase == FORWARD else reversed(parts):
            self._issue(stream, *part)
        end = self._streams[stream]
        if (late_s := end - start - total_s) > _ROUNDING_S:
            self.classes[LATE_CLASS] += late_s
        self._note("compute", max(seconds, key=lambda name: seconds[name], default=LATE_CLASS), start, end)

    def _issue(self, stream: int, launches: int, seconds: float, launch_s: float) -> None:
        """Kernels in parts, none longer than an eighth of the queue: a part waits for room in it."""
        left = launches
        self._streams[stream] = max(self._streams[stream], self._host)
        while left > 0:
            part = min(_PART, left)
            left -= part
            self._launched += part
            while self._queue and self._queue[0][0] <= self._launched - QUEUED_LAUNCHES:
                self._host = max(self._host, self._queue.popleft()[1])
            begun = max(self._streams[stream], self._host)
            self._host += part * launch_s
            self._streams[stream] = max(begun + seconds * part / launches, self._host)
            self._queue.append((self._launched, self._streams[stream]))

    def _call(self, call: Call) -> None:
        start = max(self._streams[call.stream], self._host)
        end = self._occupy("communication", call.kind, start, self._pace.call_s(call))
        self._ends.append(end)
        if call.kind in POINT_TO_POINT:
            self._streams[call.stream] = end

    def _copy(self, copy: HostCopy) -> bool:
        seconds = _seconds(copy.nbytes, self._pace.copied_bytes_per_s)
        if seconds is None:
            return False
        seconds /= self._pace.paged_shares[copy.is_up] if copy.is_paged else 1.0
        name = "to device" if copy.is_up else "to host"
        start = max(self._streams[copy.stream], self._host)
        self._streams[copy.stream] = self._occupy(name, name, start, seconds) if copy.nbytes else start
        if copy.blocks:
            self._host = self._streams[copy.stream]
        return True

    def _wait(self, stream: int | None, until: float) -> None:
        if stream is None:
            self._host = max(self._host, until)
        else:
            self._streams[stream] = max(self._streams[stream], until)

    def _occupy(self, lane: str, name: str, ready: float, seconds: float) -> float:
        start = max(ready, self._lanes[lane])
        self._lanes[lane] = start + seconds
        self._note(lane, name, start, start + seconds)
        return start + seconds

    def _note(self, lane: str, name: str, start: float, end: float) -> None:
        if end > start:
            self.spans.append(Span(lane, name, self._phase, start, end))


def _seconds(nbytes: int, rate: float | None) -> float | None:
    if not nbytes:
        return 0.0
    return None if rate is None else nbytes / rate


def merged(spans: Iterable[tuple[float, float]], gap_s: float = 0.0) -> list[tuple[float, float]]:
    """The same time in spans that lie further apart than `gap_s`, in order."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1] + gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def outside(start: float, end: float, spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """What of `start` to `end` none of `spans`, merged, covers."""
    uncovered = []
    for index in range(bisect_right(spans, start, key=lambda span: span[1]), len(spans)):
        begun, done = spans[index]
        if begun >= end:
            break
        if begun > start:
            uncovered.append((start, begun))
        start = max(start, done)
    return [*uncovered, (start, end)] if start < end else uncovered
