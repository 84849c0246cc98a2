"""Measures communication time of steps, and its exposed part, with torch's profiler.

A step's clock cannot separate waiting from computing if an engine overlaps the two, and a wrapper of torch.distributed
does not see collectives that C++ starts (DDP's reducer). The profiler sees both: the libraries mark each collective,
send and receive from the call to its end (`gloo:all_reduce`), on GPUs by its kernels; torch marks computation (`aten::`
operations, kernels). Communication without concurrent computation is exposed. The profiler slows steps down, so these
are neither timed nor memory steps, and results are shares of their own length.

Communication through neither gloo nor NCCL (torch.distributed.rpc, a shared-memory kernel) is not seen: a step without
any visible communication has no result.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType

from zerobench.estimate.clock.replay import merged, outside
from zerobench.rank.ledger.device import Device
from zerobench.records.records import CommunicationTime

Span = tuple[float, float]
"""Start and end in nanoseconds."""

_LIBRARIES = ("gloo:", "nccl:", "ncclDevKernel", "ncclKernel")


@dataclass(frozen=True)
class Event:
    """One event of the profiler."""

    name: str
    start_ns: float
    end_ns: float
    on_device: bool
    """True if it ran on the GPU."""


@contextmanager
def watched(device: Device, into: list[CommunicationTime]) -> Iterator[None]:
    """Profile one step of a rank and append its result to `into`."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.is_cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    device.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        start = time.perf_counter()
        yield
        device.synchronize()
        step_s = time.perf_counter() - start
    profile: Any = profiler.profiler
    events = (
        Event(event.name(), event.start_ns(), event.start_ns() + event.duration_ns(), on_device)
        for event in profile.kineto_results.events()
        for on_device in [event.device_type() == DeviceType.CUDA]
        if not (on_device and event.is_user_annotation())
    )
    into.append(summary(events, step_s))


def summary(events: Iterable[Event], step_s: float) -> CommunicationTime:
    """Summarise the communication of a step of `step_s` seconds from its `events`; on a GPU only kernels count."""
    relevant = list(events)
    if any(event.on_device for event in relevant):
        relevant = [event for event in relevant if event.on_device]
    talks = [event for event in relevant if event.name.startswith(_LIBRARIES)]
    works = [event for event in relevant if event.on_device or event.name.startswith("aten::")]
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
