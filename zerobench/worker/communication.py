"""How long collectives are under way in a step, and how long a rank does nothing else: steps under torch's profiler.

A step's clock cannot tell waiting from computing where an engine overlaps the two, and a wrapper of torch.distributed
sees nothing of what C++ starts (DDP's reducer). The profiler sees both: the libraries mark each collective, send and
receive from the call to its end (`gloo:all_reduce`), on GPUs by its kernels; torch marks what computes (`aten::`
operations, kernels). What is left of the first without the second is exposed: the rank waits, or communicates and does
nothing else. The profiler slows what it watches, so these steps are neither timed nor memory steps, and what is told
of them is a share of their own length.

What passes neither gloo nor NCCL (torch.distributed.rpc, a shared-memory kernel) is not seen: a step without any
communication at all tells nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType

from zerobench.memory.device import Device
from zerobench.records import CommunicationTime

Span = tuple[float, float]
"""Start and end in nanoseconds."""

_LIBRARIES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


@dataclass(frozen=True)
class Event:
    """One thing that the profiler saw."""

    name: str
    start_ns: float
    end_ns: float
    on_device: bool
    """Whether it ran on the GPU."""


@contextmanager
def watched(device: Device, into: list[CommunicationTime]) -> Iterator[None]:
    """Watch one step of a rank and append what was seen of it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.is_cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    device.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        start = time.perf_counter()
        yield
        device.synchronize()
        step_s = time.perf_counter() - start
    into.append(summary(_events(profiler), step_s))


def _events(profiler: Any) -> list[Event]:
    cuda = DeviceType.CUDA
    return [
        Event(one.name(), one.start_ns(), one.start_ns() + one.duration_ns(), one.device_type() == cuda)
        for one in profiler.profiler.kineto_results.events()
        if not (one.device_type() == cuda and one.is_user_annotation())
    ]


def summary(events: Iterable[Event], step_s: float) -> CommunicationTime:
    """What `events` of a step of `step_s` seconds say of its communication; on a GPU its kernels alone count."""
    known = list(events)
    if any(event.on_device for event in known):
        known = [event for event in known if event.on_device]
    talks = [event for event in known if event.name.startswith(_LIBRARIES)]
    works = [event for event in known if event.on_device or event.name.startswith("aten::")]
    under_way = merged((one.start_ns, one.end_ns) for one in talks)
    computing = merged((one.start_ns, one.end_ns) for one in works if not one.name.startswith(_LIBRARIES))
    in_flight = _length(under_way)
    return CommunicationTime(
        step_s=step_s,
        calls=len(talks),
        in_flight_s=in_flight / 1e9,
        exposed_s=(in_flight - _common(under_way, computing)) / 1e9,
    )


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans that do not touch, in order."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def _common(one: list[Span], other: list[Span]) -> float:
    """How long both are; each merged."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        total += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] <= other[j][1]:
            i += 1
        else:
            j += 1
    return total
