"""The expected time of a step from its issue order alone, whatever was trained and however.

A model, an optimizer and a precision are what the trace shows of them: products by shape and data type, attention by
head size and mask, all other kernels by their bytes, collectives, copies and waits where they were issued. Rates are
those of `rates.yaml`, as eager kernels of transformers reach them. What no program was timed at widens the interval and
is named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.links import Links
from zerobench.config.hardware.overheads import StepConstants
from zerobench.config.trial.trial import Precision
from zerobench.estimate.clock.achieved import MAPPED_BYTE_S, PAGED_SHARES
from zerobench.estimate.clock.collectives import KindTraffic
from zerobench.estimate.clock.device import Device, device_of
from zerobench.estimate.clock.host import BlockIssue
from zerobench.estimate.clock.kernels import FP32_BYTES, WORD_BYTES, fp32_gemm_s, gemm_s, moved_s
from zerobench.estimate.clock.links import collective_s
from zerobench.estimate.clock.rates import HostRates, Kernels, shipped_rates
from zerobench.estimate.clock.replay import POINT_TO_POINT, Pace, Timeline, replay
from zerobench.estimate.clock.step import replayed
from zerobench.estimate.clock.trace import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Attention,
    Call,
    Drive,
    Host,
    HostCopy,
    Product,
    StepTrace,
    Work,
)
from zerobench.estimate.clock.trace import Kernels as Issued

_PHASES = ("", FORWARD, BACKWARD, UPDATE)
_GIGA = 1e9
_TIMED_TYPES = frozenset({"bf16", "fp16"})
_NAMED_SHARE = 0.05
"""The least part of all FLOPs that is worth a name."""


class Place(NamedTuple):
    """What a step runs on."""

    gpu: Gpu
    links: Links
    """At the rates that are achieved of them."""
    world_size: int
    gpus_per_node: int


class IssuedStep(NamedTuple):
    """A trace and the rates that it is replayed at."""

    trace: StepTrace
    pace: TypedPace

    def parts(self) -> tuple[float, float, float] | None:
        """Seconds of computing, of communication that nothing hides, and of the update."""
        timeline = self.timeline()
        # What a loop does between steps was not played and is not in the time.
        rates = self.pace.device.rates.model_copy(update={"step_s": 0.0, "micro_batch_s": 0.0})
        return None if timeline is None else replayed(timeline, rates, self.trace.micro_batches)

    def timeline(self) -> Timeline | None:
        """When each kernel, collective and copy of it runs."""
        return replay(self.trace, self.pace)

    def issued_by(self, host: HostRates | None) -> IssuedStep:
        """The same step issued by another host, or by one that is never late."""
        pace, issue = self.pace, self.pace.issue
        launch_s = {} if host is None or issue is None else launch_seconds(issue, host)
        return self._replace(pace=replace(pace, device=replace(pace.device, host=host), launch_s=launch_s))


@dataclass(frozen=True)
class TypedPace(Pace):
    """Times each kernel in its own data type."""

    peaks: Mapping[str, float] | None = None
    """FLOP/s by data type, as the catalogue has them."""
    default_type: str = Precision.BF16.value
    """Of products that say none."""
    issue: BlockIssue | None = None

    def work_s(self, phase: str, work: Work) -> dict[str, float]:
        """Seconds of kernels by class."""
        types = work.dtypes or (self.default_type,) * len(work.products)
        products = sum(
            count * self._product_s(shape, dtype) for (shape, count), dtype in zip(work.products, types, strict=True)
        )
        by_class = {
            "products": products,
            "attention": sum(self._attention_s(kind, flops) for kind, flops in _attentions(work, self.default_type)),
            "elementwise": work.moved_bytes * self.byte_s[phase],
        }
        slower = self.slower if phase == UPDATE else self.passes_slower
        return {name: seconds * slower for name, seconds in by_class.items() if seconds}

    def _product_s(self, shape: Product, dtype: str) -> float:
        if dtype == Precision.FP32.value:
            return fp32_gemm_s(self.device, *shape)
        device = replace(self.device, peak_flops=self._peak(dtype))
        seconds = gemm_s(device, *shape)
        if dtype == "tf32":
            rows, columns, inner = shape
            seconds = max(seconds, moved_s(device, FP32_BYTES * (rows * inner + inner * columns + rows * columns)))
        return seconds

    def _attention_s(self, kind: Attention, flops: int) -> float:
        """A causal mask hides half of the FLOPs that torch counts."""
        share, half = _attention_rates(self.device, kind.head_size)["backward" if kind.is_backward else "forward"]
        achieved = self._peak(kind.dtype) * share * kind.positions / (kind.positions + half)
        return flops / (2 if kind.is_causal else 1) / achieved

    def _peak(self, dtype: str) -> float:
        peaks = self.peaks or {}
        return peaks.get(dtype) or (self.device.fp32_flops if dtype == "fp32" else None) or self.device.peak_flops


def issued_step(
    trace: StepTrace, place: Place, issue: BlockIssue, constants: StepConstants | None = None
) -> IssuedStep | str:
    """`trace` with its rates on `place`, or why it has no time; `issue`: the host's Python beside its launches.

    `constants` are those of a machine that was calibrated.
    """
    device = device_at_16_bits(place.gpu)
    if device is None:
        return f"{place.gpu.name}: 16-bit peak or memory bandwidth missing in the catalogue"
    calls = {item for item in trace.items if isinstance(item, Call)}
    if any(call.kind in POINT_TO_POINT for call in calls):
        return "pipeline: the order of one stage does not show how long it waits for others"
    call_s = {call: _call_s(call, place) for call in calls}
    if unknown := sorted({call.kind for call, seconds in call_s.items() if seconds is None}):
        return f"rate of the link unknown for {', '.join(unknown)}"
    links = place.links
    if lacking := _lacking_rate(trace, links):
        return lacking
    device = as_eager(device, trace, constants)
    byte_s = moved_s(device, 1)
    eager_s = byte_s / shipped_rates().today.eager_share
    pace = TypedPace(
        device,
        device.rates.slower(place.world_size),
        {} if device.host is None else launch_seconds(issue, device.host),
        {phase: byte_s if phase == UPDATE else eager_s for phase in _PHASES},
        lambda call: call_s[call] or 0.0,
        copied_bytes_per_s=_rate(links.host_link_gb_per_s),
        host_bytes_per_s=_rate(links.host_memory_gb_per_s, place.gpus_per_node),
        drive_bytes_per_s=_rate(links.nvme_gb_per_s, place.gpus_per_node),
        paged_shares=PAGED_SHARES,
        mapped_byte_s=MAPPED_BYTE_S,
        peaks={str(dtype): 1e12 * peak for dtype, peak in place.gpu.peak_tflops.items()},
        issue=issue,
    )
    return IssuedStep(trace, pace)


def device_at_16_bits(gpu: Gpu) -> Device | None:
    """`gpu` with its peak in bf16, or fp16 where it has no bf16; None where its datasheet leaves something out."""
    return device_of(gpu, Precision.BF16) or device_of(gpu, Precision.FP16)


def launch_seconds(issue: BlockIssue, host: HostRates) -> dict[str, float]:
    """Seconds in which the host issues one kernel of each phase, the Python around it included."""
    of_phases = {FORWARD: issue.forward, BACKWARD: issue.backward, UPDATE: issue.update}
    launches = {UPDATE: host.in_update.launch_s}
    return {
        phase: launches.get(phase, host.launch_s) + (each.python_s(host) / each.launches if each.launches else 0.0)
        for phase, each in of_phases.items()
    }


def as_eager(device: Device, trace: StepTrace, constants: StepConstants | None = None) -> Device:
    """`device` as torch runs kernels today, with the sizes of the trace's matrices that lie at no multiple of 16
    bytes.
    """
    today = shipped_rates().today
    is_alone = not any(isinstance(item, Call) for item in trace.items)
    update = {
        "gemm_share": today.kernels[device.kind].gemm_share,
        "in_programs": (today.alone if is_alone else today.among_ranks)
        * (1.0 if constants is None else constants.slower),
        "spread": today.spread,
    }
    if constants is not None and device.host is not None:
        host = {"launch_s": constants.launch_s, "slower": constants.python_slower}
        device = replace(device, host=device.host.model_copy(update=host))
    sizes = {
        size
        for phase, item in trace.in_phases()
        if isinstance(item, Issued) and phase == FORWARD
        for (_, columns, inner), _ in trace.works[item.work].products
        for size in (columns, inner)
    }
    unaligned = frozenset(size for size in sizes if size * WORD_BYTES % 16)
    return replace(device, rates=device.rates.model_copy(update=update), unaligned_sizes=unaligned)


def untimed_classes(trace: StepTrace) -> list[str]:
    """Kernel classes of the trace that carry weight and that no timed program had."""
    flops: Counter[str] = Counter()
    for _, item in trace.in_phases():
        if not isinstance(item, Issued):
            continue
        work = trace.works[item.work]
        for (shape, count), dtype in zip(work.products, work.dtypes, strict=False):
            flops["" if dtype in _TIMED_TYPES else f"products in {dtype}"] += 2 * count * math.prod(shape)
        for kind, attended in work.attentions:
            masked = "" if kind.is_causal else "attention without a causal mask"
            flops[masked if kind.dtype in _TIMED_TYPES else f"attention in {kind.dtype}"] += attended
    total = sum(flops.values())
    return sorted(name for name, count in flops.items() if name and count >= _NAMED_SHARE * total)


def moves_to_host(trace: StepTrace) -> bool:
    """Whether it copies more than the batch and single values between host and device."""
    moved = sum(item.nbytes for item in trace.items if isinstance(item, HostCopy))
    return moved > _BATCH_BYTES * max(1, trace.micro_batches)


def updates_on_host(trace: StepTrace) -> bool:
    """Whether the host's processor has a part in the update."""
    return any(isinstance(item, Host) and phase == UPDATE for phase, item in trace.in_phases())


_BATCH_BYTES = 1 << 26


def _attentions(work: Work, default_type: str) -> Iterable[tuple[Attention, int]]:
    if work.attentions:
        return work.attentions
    return [
        (Attention(_USUAL_HEAD, _USUAL_POSITIONS, True, bool(is_backward), default_type), flops)
        for is_backward, flops in enumerate(work.attention)
        if flops
    ]


_USUAL_HEAD, _USUAL_POSITIONS = 128, 2048
"""Of traces that say neither."""


def _attention_rates(device: Device, head_size: int) -> dict[str, tuple[float, float]]:
    kernels: Kernels = shipped_rates().today.kernels[device.kind]
    return kernels.attention[min(kernels.attention, key=lambda size: abs(size - head_size))]


def _call_s(call: Call, place: Place) -> float | None:
    traffic = KindTraffic(call.kind, call.group_size, 1, call.message_bytes, None, call.num_nodes)
    return collective_s(traffic, place.gpus_per_node, place.links)


def _lacking_rate(trace: StepTrace, links: Links) -> str | None:
    """What a replay would not know of the trace's transfers."""
    kinds = {type(item) for item in trace.items if not isinstance(item, HostCopy) or item.nbytes}
    if HostCopy in kinds and links.host_link_gb_per_s is None:
        return "rate of the link to the host missing in the catalogue"
    if Host in kinds and links.host_memory_gb_per_s is None:
        return "bandwidth of the host's memory not given"
    if Drive in kinds and links.nvme_gb_per_s is None:
        return "read rate of the NVMe drives not given (--nvme 7GB/s)"
    return None


def _rate(gb_per_s: float | None, ranks: int = 1) -> float | None:
    return None if gb_per_s is None else gb_per_s * _GIGA / ranks
