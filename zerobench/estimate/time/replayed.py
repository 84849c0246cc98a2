"""The timeline of a predicted step: its trace replayed at the rates of a GPU, its host and its links.

Products, attention, collectives and transfers take what the closed form says of each. Of the passes' elementwise work
the trace's bytes say how much falls where; how long it takes together the words a block that the rates were fitted on
(eager modules of transformers move two to three times as many bytes as the fitted ones, which fuse more). An update on
the device moves the bytes that its own operations do. The host issues the trace's launches, and the Python of its
engine between them (estimate/clock/host.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from zerobench.common.vocabulary import Phase
from zerobench.config.derived.batch import micro_batches_per_step
from zerobench.config.derived.chunks import chunk_rows
from zerobench.config.trial.recomputation import OPERATIONS
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.clock.achieved import MAPPED_BYTE_S, PAGED_SHARES
from zerobench.estimate.clock.collectives import KindTraffic
from zerobench.estimate.clock.device import Device
from zerobench.estimate.clock.host import HEAD_LAUNCHES, HEAD_PRODUCTS, Head, launch_seconds
from zerobench.estimate.clock.kernels import attention_flops, moved_s
from zerobench.estimate.clock.links import collective_s
from zerobench.estimate.clock.replay import Pace, Timeline, replay
from zerobench.estimate.clock.roofline import KernelClass, kernel_classes
from zerobench.estimate.clock.step import replayed
from zerobench.estimate.clock.trace import BACKWARD, FORWARD, Call, Kernels, StepTrace
from zerobench.estimate.clock.trace import Work as Gathered
from zerobench.estimate.time.engines import (
    device_update_s,
    issue_of,
    lacking_blocks,
    more_update_bytes,
    reduces_after,
    updated_blocks,
)
from zerobench.estimate.time.passes import Decoder, elementwise_bytes, loss_bytes
from zerobench.estimate.time.terms import Work, update_seconds

_GIGA = 1e9


def timeline_of(work: Work, device: Device, decoder: Decoder) -> Timeline | None:
    """The replay of the trace in the rank's record at the links of `work`.

    None where there is no trace, or it does not tell enough. Raises UserError where the trace is none.
    """
    paced = _paced(work, device, decoder)
    return None if paced is None else replay(*paced)


def replayed_parts(
    work: Work, device: Device, decoder: Decoder, *, is_whole: bool = True
) -> tuple[float, float, float] | None:
    """What `timing.step.replayed` says of the same replay, of all micro-batches that a step of the trial has, or of
    those in the trace where it is not to be whole.

    A trace may have fewer of them (three say all). What one more takes is then told by a replay of some more,
    which are alike, and counted for each that lacks.
    """
    paced = _paced(work, device, decoder)
    if paced is None:
        return None
    trace, pace = paced
    lacking = micro_batches_per_step(work.spec, work.spec.world_size - 1) - trace.micro_batches if is_whole else 0
    times = [0] if lacking <= 0 or trace.micro_batches < 2 else [_UNTIL_ALIKE, _UNTIL_ALIKE + 1]
    traces = [trace.lengthened(more) if more else trace for more in times]
    timelines = [(replay(each, pace), each.micro_batches) for each in traces]
    parts = [replayed(timeline, device.rates, count) for timeline, count in timelines if timeline is not None]
    if len(parts) < len(times):
        return None
    one_more = [later - sooner for sooner, later in zip(parts[0], parts[-1], strict=True)]
    compute, exposed, update = (
        part + (max(lacking, 0) - times[0]) * more for part, more in zip(parts[0], one_more, strict=True)
    )
    return compute, exposed, update


_UNTIL_ALIKE = 2
"""Further micro-batches after which each takes as long as the one before it."""


def kernels_of(work: Work, device: Device, decoder: Decoder) -> list[KernelClass] | None:
    """The classes of the same trace's kernels, with their FLOPs, bytes and seconds."""
    paced = _paced(work, device, decoder)
    tokens = work.spec.micro_batch_size * work.spec.sequence_length
    return None if paced is None else kernel_classes(*paced, decoder, tokens, work.spec.sequence_length)


def _paced(work: Work, device: Device, decoder: Decoder) -> tuple[StepTrace, Pace] | None:
    trace = work.trace
    pace = None if trace is None else _pace(trace, work, device, decoder)
    return None if trace is None or pace is None else (trace, pace)


def _pace(trace: StepTrace, work: Work, device: Device, decoder: Decoder) -> Pace | None:
    seconds: dict[Call, float | None] = {}
    for item in trace.items:
        if isinstance(item, Call):
            seconds.setdefault(item, _call_s(item, work))
    known = {call: call_s for call, call_s in seconds.items() if call_s is not None}
    blocks = _blocks(trace, work, decoder)
    byte_s = _byte_s(trace, work, device, decoder, blocks)
    if byte_s is None or len(known) < len(seconds):
        return None
    per_byte = dict.fromkeys(blocks, byte_s) | {Phase.STEP.value: _update_byte_s(work, device)}
    links, ranks = work.links, work.spec.gpus_per_node
    issue, head = issue_of(work.spec, decoder, after=reduces_after(work)), _head(work, device, decoder)
    return Pace(
        device,
        device.rates.slower(work.spec.world_size),
        launch_seconds(
            trace,
            issue,
            device.host,
            blocks,
            updated_blocks(work.spec, decoder.layers),
            micro_batches_per_step(work.spec, work.spec.world_size - 1),
            lacking=lacking_blocks(work, decoder.layers),
            head=head,
        ),
        per_byte,
        known.__getitem__,
        copied_bytes_per_s=_rate(links.host_link_gb_per_s),
        host_bytes_per_s=_rate(links.host_memory_gb_per_s, ranks),
        drive_bytes_per_s=_rate(links.nvme_gb_per_s, ranks),
        paged_shares=PAGED_SHARES,
        mapped_byte_s=MAPPED_BYTE_S,
        head=head,
        head_launch_s=0.0 if device.host is None else device.host.launch_s,
    )


def _head(work: Work, device: Device, decoder: Decoder) -> Head:
    how, tokens = work.spec.cross_entropy, work.spec.micro_batch_size * work.spec.sequence_length
    loss_s = moved_s(device, loss_bytes(decoder, device.rates, head_rows(work.spec, decoder) or tokens))
    return Head(decoder.vocabulary, HEAD_LAUNCHES[how] / HEAD_PRODUCTS, loss_s / HEAD_PRODUCTS)


def head_rows(spec: TrialSpec, decoder: Decoder) -> int | None:
    """Tokens that the head takes at a time; None: all."""
    tokens = spec.micro_batch_size * spec.sequence_length
    return chunk_rows(tokens, decoder.hidden, decoder.vocabulary) if spec.cross_entropy.is_chunked else None


def _rate(gb_per_s: float | None, ranks: int = 1) -> float | None:
    return None if gb_per_s is None else gb_per_s * _GIGA / ranks


def _call_s(call: Call, work: Work) -> float | None:
    traffic = KindTraffic(call.kind, call.group_size, 1, call.message_bytes, None, call.num_nodes)
    return collective_s(traffic, work.spec.gpus_per_node, work.links)


def _works(trace: StepTrace) -> list[tuple[str, Gathered]]:
    return [(phase, trace.works[item.work]) for phase, item in trace.in_phases() if isinstance(item, Kernels)]


def _blocks(trace: StepTrace, work: Work, decoder: Decoder) -> dict[str, tuple[float, float]]:
    """How many blocks each phase of the passes runs forward and backward, by their attention; where that is kept and
    others of a block's operations run again, each block does.
    """
    spec = work.spec
    tokens = spec.micro_batch_size * spec.sequence_length
    of_block = attention_flops(tokens, spec.sequence_length, decoder.attention_width)
    flops = {FORWARD: [0, 0], BACKWARD: [0, 0]}
    for phase, kernels in _works(trace):
        if phase in flops:
            flops[phase] = [before + more for before, more in zip(flops[phase], kernels.attention, strict=True)]
    passed = {phase: (there / of_block[0], back / of_block[1]) for phase, (there, back) in flops.items()}
    if spec.activation_checkpointing == OPERATIONS:
        passed[BACKWARD] = (passed[BACKWARD][1], passed[BACKWARD][1])
    return passed


def _update_byte_s(work: Work, device: Device) -> float:
    """Seconds of a moved byte in the update: the optimizer's and the engine's take differently long."""
    nbytes = update_seconds(work)[0] * device.memory_bytes_per_s + more_update_bytes(work)
    return device_update_s(work, device) / nbytes if nbytes else moved_s(device, 1)


def _byte_s(
    trace: StepTrace, work: Work, device: Device, decoder: Decoder, blocks: Mapping[str, tuple[float, float]]
) -> float | None:
    """Seconds of a moved byte in the passes; None where the blocks that are run cannot be told.

    Whether the head runs is told by its product.
    """
    spec = work.spec
    tokens = spec.micro_batch_size * spec.sequence_length
    works = [kernels for phase, kernels in _works(trace) if phase != Phase.STEP]
    forward, backward = map(sum, zip(*blocks.values(), strict=True))
    moved = sum(kernels.moved_bytes for kernels in works)
    if not forward or not moved:
        return None
    heads = sum(
        count * rows / tokens
        for kernels in works
        for (rows, columns, _), count in kernels.products
        if columns == decoder.vocabulary
    )
    each = elementwise_bytes(decoder, device.rates, tokens)
    fitted = forward * each[0] + backward * each[1] + heads * loss_bytes(decoder, device.rates, tokens)
    return moved_s(device, fitted / moved)
