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

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType

from zerobench.estimate.time.replay import merged, outside
from zerobench.rank.ledger.device import Device
from zerobench.records.records import CommunicationTime

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
    seen: Any = profiler.profiler
    events = (
        Event(event.name(), event.start_ns(), event.start_ns() + event.duration_ns(), on_device)
        for event in seen.kineto_results.events()
        for on_device in [event.device_type() == DeviceType.CUDA]
        if not (on_device and event.is_user_annotation())
    )
    into.append(summary(events, step_s))


def summary(events: Iterable[Event], step_s: float) -> CommunicationTime:
    """What `events` of a step of `step_s` seconds say of its communication; on a GPU its kernels alone count."""
    known = list(events)
    if any(event.on_device for event in known):
        known = [event for event in known if event.on_device]
    talks = [event for event in known if event.name.startswith(_LIBRARIES)]
    works = [event for event in known if event.on_device or event.name.startswith("aten::")]
    under_way = merged((event.start_ns, event.end_ns) for event in talks)
    computing = merged((event.start_ns, event.end_ns) for event in works if not event.name.startswith(_LIBRARIES))
    return CommunicationTime(
        step_s=step_s,
        calls=len(talks),
        in_flight_s=_length(under_way) / 1e9,
        exposed_s=_length(part for span in under_way for part in outside(*span, computing)) / 1e9,
    )


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
