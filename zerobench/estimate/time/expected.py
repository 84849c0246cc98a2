"""The expected time of a predicted step: the time model (zerobench.estimate.time) over what a rank's record counted.

Where the record has a trace of the step, it is replayed (replayed.py). Elsewhere, as on a login node, computing comes
from the model's sizes, collectives, offload and the update from the record, by the terms of the lower bound over the
shares of the datasheets' rates that published runs achieve. A pipeline's stages pass through its schedule (stages.py).
Engines, places and models that the rates were not fitted to make the interval wider, and are named (known.py).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from zerobench.common.vocabulary import Phase
from zerobench.config.derived.batch import micro_batches_of_share, micro_batches_per_step
from zerobench.config.hardware.hardware import Gpu
from zerobench.config.hardware.links import Links
from zerobench.config.hardware.overheads import StepConstants, calibrated_steps
from zerobench.config.models.tensors import layout_of, lists_tensors
from zerobench.config.trial.recomputation import attention_again, recomputed_blocks
from zerobench.config.trial.trial import Attention, Blocks, Compile, Evidence, Offload, TrialSpec
from zerobench.estimate.clock.achieved import MAPPED_BYTE_S, achieved
from zerobench.estimate.clock.assumed import host_assumption
from zerobench.estimate.clock.calibrated import calibrated
from zerobench.estimate.clock.collectives import traffic_by_kind
from zerobench.estimate.clock.device import Device, device_of
from zerobench.estimate.clock.host import HEAD_LAUNCHES, OUTSIDE_LAUNCHES, REDUCE_ONCE
from zerobench.estimate.clock.kernels import attention_s, linear_s
from zerobench.estimate.clock.links import collective_s
from zerobench.estimate.clock.rates import HostRates, rates_of
from zerobench.estimate.clock.replay import Timeline
from zerobench.estimate.clock.roofline import Roofline
from zerobench.estimate.clock.script_step import script_expected, script_step, why_no_script_time
from zerobench.estimate.clock.step import ExpectedStep, Sides, expected
from zerobench.estimate.memory.terms.passes import kept_products
from zerobench.estimate.time.bound import step_bound
from zerobench.estimate.time.engines import (
    device_update_s,
    issue_of,
    late_update_s,
    mapped_update_bytes,
    more_host_update_bytes,
    recast_host_bytes,
    reduces_after,
)
from zerobench.estimate.time.known import assumptions, overhead_assumption, why_unknown
from zerobench.estimate.time.passes import Decoder, Passes, decoder_of, passes
from zerobench.estimate.time.replayed import head_rows, kernels_of, replayed_parts, timeline_of
from zerobench.estimate.time.stages import piped
from zerobench.estimate.time.step import Bucket, Phases, exposed_s, hidden_reducing_s, last_reduced_s, step
from zerobench.estimate.time.step_time_tuned import tuned_of
from zerobench.estimate.time.swaps import Pass, swapping_s
from zerobench.estimate.time.terms import Work, optimizer, update_seconds
from zerobench.estimate.time.transfers import Copies, copies, fsdp_copies, offload, recast_s
from zerobench.estimate.time.transformers_blocks import as_run, in_todays_loop
from zerobench.records.trials import Trial, case_of


class TimedWork(NamedTuple):
    """What a time is asked of."""

    work: Work
    device: Device
    decoder: Decoder
    stops_early: bool = True
    """Whether a checkpointed block runs again as far as backward needs it (torch's non-reentrant checkpointing from 2.1
    on, transformers' from 5 on), and not to its end."""
    is_whole: bool = True
    """Whether of a trace all micro-batches of the step are replayed, or those that were recorded."""

    @property
    def replayed(self) -> tuple[Work, Device, Decoder]:
        """What a replay of its trace asks for."""
        return self.work, self.device, self.decoder

    @property
    def update_s(self) -> float:
        """Of the update, without its communication: on the device, or else on the host."""
        on_host = update_seconds(self.work)[1]
        if (rate := self.work.links.host_memory_gb_per_s) is not None:
            on_host += (more_host_update_bytes(self.work) + recast_host_bytes(self.work)) / (rate * 1e9)
        on_host += MAPPED_BYTE_S * mapped_update_bytes(self.work)
        return device_update_s(self.work, self.device) + on_host

    def at(self, constants: StepConstants | None) -> TimedWork:
        """The same on a machine whose own constants are known."""
        if constants is None:
            return self
        slowed = self.work.links.slowed(copies=constants.copies_slower, host_update=constants.host_update_slower)
        return self._replace(work=replace(self.work, links=slowed), device=self.device.calibrated(constants))


def expected_step(trial: Trial, gpu: Gpu, links: Links) -> ExpectedStep | None:
    """What a steady step of `trial` is expected to take; None where the model does not know such work.

    Where a run of one's own was timed on such a GPU (`zerobench calibrate`), the constants that it was fitted to hold,
    and the interval is as wide as its trials differed; of ranks that ran alone, those of computing, and all else is as
    sure as published rates. No factor makes a step shorter than its lower bound, and no interval begins before it.
    """
    if trial.spec.own is not None:
        return script_expected(trial, gpu, links)
    asked = _timed_here(trial, gpu, links)
    step = None if asked is None else published_step(asked)
    if step is None:
        return None
    bound = step_bound(trial, gpu, links)
    measured, least_s = calibrated_steps(gpu.name), 0.0 if bound is None else bound.step_s or 0.0
    if measured is not None:
        step = calibrated(step, *measured, rates_of(gpu)[0].spread, least_s)
    return replace(step, low_s=max(step.low_s, least_s))


def published_step(asked: TimedWork) -> ExpectedStep | None:
    """By the rates of its device, and how sure published runs make them; None where something cannot be timed."""
    rates, parts = asked.device.rates, parts_of(asked)
    if parts is None:
        return None
    granted: dict[str, float | Sides] = {**asked.device.assumptions, **assumptions(asked.work.spec)}

    def step_s(host: HostRates | None) -> float:
        at_host = asked._replace(device=replace(asked.device, host=host), is_whole=False)
        return sum(parts_of(at_host) or parts)

    granted |= host_assumption(asked.device.host, step_s)
    between_s = rates.between_s(micro_batches_of_share(asked.work.spec))
    return expected(parts, rates.spread, granted | overhead_assumption(between_s, sum(parts)))


def why_no_time(trial: Trial, gpu: Gpu, links: Links) -> str:
    """Why no step is expected of `trial`, of which there is none."""
    if trial.spec.own is not None:
        return why_no_script_time(trial, gpu, links)
    if (why := why_unknown(trial.spec)) is not None:
        return why
    if decoder_of(trial.spec.model) is None or not lists_tensors(trial.spec.model):
        return f"{trial.spec.model.name}: no closed form of its blocks"
    if device_of(gpu, trial.spec.precision) is None:
        return f"{gpu.name}: {trial.spec.precision.value} peak or memory bandwidth missing in the catalogue"
    if Offload.NVME in trial.spec.offloaded_to and links.nvme_gb_per_s is None:
        return "read rate of the NVMe drives not given (--nvme 7GB/s)"
    return "link rate unknown, or no collectives counted"


def timeline(trial: Trial, gpu: Gpu, links: Links) -> Timeline | None:
    """The step as its trace is replayed; None without one, and with adapters, whose bytes no fitted block moves.

    Nor of a pipeline: one stage's order does not show when it waits for the others.
    """
    if trial.spec.own is not None:
        issued = script_step(trial, gpu, links)
        return None if isinstance(issued, str) else issued.timeline()
    asked = _in_order_here(trial, gpu, links)
    return None if asked is None else timeline_of(*asked.replayed)


def roofline(trial: Trial, gpu: Gpu, links: Links) -> Roofline | None:
    """The same trace's kernels by class, and the rates that bound them; None where there is no timeline."""
    asked = _in_order_here(trial, gpu, links)
    classes = None if asked is None else kernels_of(*asked.replayed)
    return None if asked is None or classes is None else Roofline(asked.device, classes)


def _in_order_here(trial: Trial, gpu: Gpu, links: Links) -> TimedWork | None:
    """What is replayed: no pipeline and no adapter."""
    is_other = _is_pipeline(trial.spec) or trial.spec.adapter is not None
    return None if is_other else _timed_here(trial, gpu, links)


def _is_pipeline(spec: TrialSpec) -> bool:
    return spec.strategy == "pipeline"


def _timed_here(trial: Trial, gpu: Gpu, links: Links) -> TimedWork | None:
    """The same as `timed_work`, at the constants of one's own machine where they are known."""
    asked, measured = timed_work(trial, gpu, links), calibrated_steps(gpu.name)
    return asked if asked is None or measured is None else asked.at(measured[0].constants)


def timed_work(trial: Trial, gpu: Gpu, links: Links) -> TimedWork | None:
    """The work of `trial` on its GPU, by the shipped rates; None where the model does not know such work."""
    spec = trial.spec
    device, decoder = device_of(gpu, spec.precision), decoder_of(spec.model)
    if device is None or decoder is None or not trial.ranks or why_unknown(spec) is not None:
        return None
    if spec.strategy == "tensor":
        decoder = decoder.cut(spec.world_size)
    work = Work(trial.ranks[0], spec, gpu, achieved(links, device.rates), case_of(trial))
    if spec.prediction.blocks is Blocks.FUSED:
        device = in_todays_loop(device)
    else:
        device = as_run(
            device,
            spec.model,
            decoder,
            spec.sequence_length,
            fuses=spec.compile is not Compile.NONE,
            alone=_alone(spec),
            loss=spec.cross_entropy,
        )
    return None if optimizer(work).update_s is None else TimedWork(work, device, decoder)


Parts = tuple[float, float, float, float]
"""Seconds of computing, of communication that nothing hides, of the update, and of a pipeline's bubbles."""


def parts_of(asked: TimedWork) -> Parts | None:
    """Of a step; None where something in it cannot be timed."""
    return _in_stages(asked) if _is_pipeline(asked.work.spec) else _in_order(asked) or _in_closed_form(asked)


def _computing(asked: TimedWork, blocks: range | None = None) -> Passes:
    """Of one micro-batch; `blocks` are a stage's, where it is not all."""
    device, decoder, spec = asked.device, asked.decoder, asked.work.spec
    tokens = spec.micro_batch_size * spec.sequence_length
    rows = head_rows(spec, decoder)
    among = range(decoder.layers) if blocks is None else blocks
    return passes(
        decoder,
        device,
        tokens,
        spec.sequence_length,
        recomputed=recomputed_blocks(spec.activation_checkpointing, among) / len(among),
        kept_s=_kept_s(asked, tokens),
        tuned=tuned_of(spec),
        head_rows=rows,
        head_launches=OUTSIDE_LAUNCHES[decoder.is_gated]
        + HEAD_LAUNCHES[spec.cross_entropy] * tokens / (rows or tokens),
        runs_all=not _is_pipeline(spec),
        is_awaited=fsdp_copies(asked.work).gradients_s > 0,
        issue=issue_of(spec, decoder, after=_reduces_after(asked.work)),
    )


def _kept_s(asked: TimedWork, tokens: int) -> float:
    """Of a block's forward pass, what is not computed again where it is checkpointed."""
    work, device, decoder, spec = asked.work, asked.device, asked.decoder, asked.work.spec
    if not spec.activation_checkpointing or not asked.stops_early:
        return 0.0
    replaces = work.case is not None and work.case.replaces_linear
    parts = spec.world_size if spec.strategy == "tensor" else 1
    kept = kept_products(spec, replaces_linear=replaces)
    kept_s = sum(linear_s(device, tokens, matrix.inputs, matrix.outputs)[0] for matrix in kept) / parts
    if spec.attention is not Attention.EAGER and not attention_again(spec.activation_checkpointing, decoder.layers):
        kept_s += attention_s(device, tokens, spec.sequence_length, decoder.attention_width)[0]
    return device.rates.in_programs * kept_s


def _in_order(asked: TimedWork) -> Parts | None:
    """By its trace; None where there is none to replay."""
    parts = None if asked.work.spec.adapter is not None else replayed_parts(*asked.replayed, is_whole=asked.is_whole)
    return None if parts is None else (*parts, 0.0)


def _in_stages(asked: TimedWork) -> Parts | None:
    work, rates = asked.work, asked.device.rates
    replayed = None if work.spec.adapter is not None else timeline_of(*asked.replayed)
    stages = piped(work, partial(_computing, asked), asked.decoder, rates, replayed)
    update = _collectives_s(work, Phase.STEP)
    if stages is None or update is None:
        return None
    updated = stages.update_times * asked.update_s + update + rates.between_s(micro_batches_of_share(work.spec))
    return stages.compute_s, stages.exposed_s, updated, stages.bubble_s


def _in_closed_form(asked: TimedWork) -> Parts | None:
    work, spec = asked.work, asked.work.spec
    communication, copying = _communication(work), offload(work)
    if not lists_tensors(spec.model) or communication is None or copying.passes_s is None or copying.update_s is None:
        return None
    computing = _computing(asked)
    if spec.offload_param is Offload.NVME:  # the host waits for what is read
        computing = replace(computing, room_s=0.0)
    micro_batches = micro_batches_per_step(spec, spec.world_size - 1)
    compute, exposed, rest = step(
        computing,
        micro_batches,
        communication,
        asked.update_s,
        asked.device.rates,
        ranks=1 if _alone(spec) else spec.world_size,
        overlaps=_overlaps(work),
    )
    shares = _by_pass(computing.forward_s, computing.backward_s)
    waits = exposed_s(computing, communication, asked.device.rates, overlaps=_overlaps(work))
    waited = _by_pass(*waits)
    blocks = micro_batches * computing.layers
    passes = [
        Pass(
            phase,
            compute * shares[phase] + exposed * waited[phase],
            _collectives_s(work, phase, "all_gather") or 0.0,
            blocks * issued_s,
        )
        for phase, issued_s in zip(shares, computing.issued_s, strict=True)
    ]
    copied = copies(work)
    bare_s = _parameters_s(spec, computing, copied, blocks) + (micro_batches - 1) * fsdp_copies(work).added_s
    # the last bucket's, beside what the device waits for the host in the next micro-batch's forward pass
    idle_s = max(0.0, computing.layers * computing.idle_forward_s - copied.parameters_s[0] / micro_batches)
    last = communication.buckets[-1].share if communication.buckets else 1.0
    for micro_batch, copy_s in enumerate(copied.gradients_s, start=1):
        hidden_s = min(idle_s, last * copy_s) if micro_batch < len(copied.gradients_s) else 0.0
        bare_s += max(0.0, _longer_s(computing, communication, copy_s, waits[1]) - hidden_s)
    swapping = swapping_s(work, passes, copied.total_s, bare_s, asked.update_s)
    if swapping is None:
        return None
    exposed += swapping[0]
    ahead_s = computing.ahead_s
    if _reduces_after(work):  # the host has the reductions to issue while the device ends the pass
        ahead_s = max(0.0, ahead_s - computing.reducing_issued_s)
    if spec.zero_stage is None and _overlaps(work):  # the host goes on while torch's engines reduce the last gradients
        ahead_s += last_reduced_s(computing, communication)
    late_s = late_update_s(work, asked.device, asked.decoder, ahead_s=ahead_s)
    return compute, exposed, rest + late_s + copying.update_s + recast_s(work) + swapping[1], 0.0


def _parameters_s(spec: TrialSpec, computing: Passes, copied: Copies, blocks: int) -> float:
    """By how many seconds copies of offloaded parameters make a step's passes longer, which pass `blocks`.

    Those of several ranks hold the host, and are beside kernels as far as it is ahead of them
    (partition_parameters.py, `ds_tensor.to(device)`). Those of a rank alone come hardly sooner than they are used
    forward, but the host goes on with blocks meanwhile; backward they are beside kernels.
    """
    bare_s = 0.0
    if spec.world_size > 1:
        kernels_s = computing.block_forward_s, computing.block_backward_s
        beside_s = [
            max(0.0, there_s - issued_s) for there_s, issued_s in zip(kernels_s, computing.issued_s, strict=True)
        ]
    else:
        beside_s = [computing.idle_forward_s, computing.block_backward_s - computing.idle_backward_s]
        bare_s = _outside(spec)[1] * copied.parameters_s[0]
    up_s, again_s = (
        max(bare, copy_s - blocks * each_s)
        for copy_s, each_s, bare in zip(copied.parameters_s, beside_s, (bare_s, 0.0), strict=True)
    )
    return up_s + again_s


def _longer_s(computing: Passes, communication: Phases, copied_s: float, waits_s: float) -> float:
    """By how many seconds copies of gradients make a backward pass longer, which waits for collectives anyway.

    They take turns with the reduction, on its stream (stage_1_and_2.py, reduce_ipg_grads; stage3.py,
    reduce_and_partition_stream), and go on beside what is gathered.
    """
    reduced_s, moving_s = communication.reduced_s, communication.reduced_s + copied_s
    exposed_s = moving_s - hidden_reducing_s(moving_s, computing, communication)
    if communication.reduces_apart:
        return max(0.0, exposed_s - waits_s)
    return exposed_s - reduced_s + hidden_reducing_s(reduced_s, computing, communication)


def _by_pass(forward_s: float, backward_s: float) -> dict[Phase, float]:
    """Their shares."""
    whole_s = forward_s + backward_s or 1.0
    return {Phase.FORWARD: forward_s / whole_s, Phase.BACKWARD: backward_s / whole_s}


def _reduces_after(work: Work) -> bool:
    return reduces_after(work) and not _alone(work.spec)


def _alone(spec: TrialSpec) -> bool:
    """Whether nothing is communicated: one rank, or one of many whose collectives move nothing."""
    return spec.world_size == 1 or spec.evidence is Evidence.SOLO


def _communication(work: Work) -> Phases | None:
    """Seconds of the collectives of the passes of one micro-batch that has any, and of the update."""
    buckets, apart = _buckets(work), work.case is not None and work.case.overlaps
    copied = fsdp_copies(work)
    ups = copied.forward_s, copied.backward_s
    if _alone(work.spec):
        down_s = copied.gradients_s
        return Phases(backward_s=down_s, buckets=buckets, reduces_apart=apart, copied_s=ups, awaited_s=down_s)
    if not work.rank.collectives:
        return None
    seconds = [_collectives_s(work, phase) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)]
    if None in seconds:
        return None
    forward, backward, update = (value or 0.0 for value in seconds)
    once = work.spec.strategy in REDUCE_ONCE
    rounds = 1 if once else micro_batches_per_step(work.spec, work.spec.world_size - 1)
    gathered = _collectives_s(work, Phase.BACKWARD, "all_gather") or 0.0
    reduced_s, gradients_s = (backward - gathered) / rounds, copied.gradients_s
    before, outside = _outside(work.spec)  # FSDP's root has all that is in no block
    each = Phases(
        forward / rounds,
        backward / rounds + gradients_s,
        update,
        rounds,
        reduced_s=reduced_s,
        buckets=buckets,
        reduces_apart=apart,
        copied_s=ups,
        reduces_after=_reduces_after(work),
        awaited_s=reduced_s + gradients_s if gradients_s else 0.0,
        first_share=outside if work.spec.strategy == "fsdp" else 0.0,
        last_share={"fsdp": outside, "ddp": before}.get(work.spec.strategy, 0.0),
        is_within=work.spec.strategy == "tensor",
    )
    if work.spec.hpz_partition_size is None or rounds == 1:
        return each
    # from all ranks in the first micro-batch, from the second copy in the others
    # (zerobench.config.derived.zeropp)
    first = _collectives_s(work, Phase.FORWARD, "all_gather", work.spec.world_size) or 0.0
    return replace(each, forward_s=(forward - first) / (rounds - 1), first_forward_s=first)


def _outside(spec: TrialSpec) -> tuple[float, float]:
    """Of a model's parameters those before its blocks, and all that are in none; of adapters, and beside frozen ones,
    which are what moves, nothing.
    """
    layout = None if spec.adapter is not None or spec.frozen is not None else layout_of(spec.model)
    if layout is None:
        return 0.0, 0.0
    before, after, total = sum(layout.before), sum(layout.after), sum(layout.all)
    return before / total, (before + after) / total


def _buckets(work: Work) -> tuple[Bucket, ...]:
    """In which DeepSpeed reduces gradients in a backward pass: one is handed on as the next gradient comes that has no
    room in it. The embedding's, the first tensor's, takes no computing.
    """
    setting = work.setting if work.spec.zero_stage in {1, 2, 3} else None
    if setting is None or setting.case.runs_bf16_optimizer:
        return ()
    fills = setting.filled(setting.case.bucket_elements)
    computed = max(1, setting.num_params - setting.tensors[0])
    following = [fill[0] for fill in fills[1:]]
    passed = accumulate(map(sum, fills))
    ready = (min(1.0, (there + more) / computed) for there, more in zip(passed, [*following, 0], strict=True))
    return tuple(Bucket(share, sum(fill) / setting.num_params) for share, fill in zip(ready, fills, strict=True))


def _collectives_s(work: Work, phase: Phase, kind: str | None = None, ranks: int | None = None) -> float | None:
    """Seconds of a phase's collectives, or of those of a kind or among so many ranks: their bytes over the links, and
    each call's latency. They run one after another, as those of one NCCL communicator do.
    """
    traffic, per_node = traffic_by_kind(work.rank, work.spec.precision, phases=(phase,)), work.spec.gpus_per_node
    seconds = [
        collective_s(each, per_node, work.links)
        for each in traffic
        if kind in {None, each.kind} and ranks in {None, each.group_size}
    ]
    return None if None in seconds else math.fsum(known for known in seconds if known is not None)


def _overlaps(work: Work) -> bool:
    """Whether collectives run beside computing: FSDP's and DDP's do, what DeepSpeed's stage 3 gathers ahead, whichever
    the stream, and all of DeepSpeed's where `overlap_comm` is on.

    What divides matrices communicates for their own inputs and outputs, which nothing else is done beside.
    """
    return work.spec.strategy != "tensor" and (work.case is None or work.case.overlaps or work.case.stage == 3)
