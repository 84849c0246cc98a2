"""Terms of the lower bound of a step that offload brings: the host link and the NVMe drives (see terms.py)."""

from __future__ import annotations

from typing import NamedTuple

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Phase, Place, StepKind
from zerobench.config.derived.batch import micro_batches_per_step
from zerobench.config.trial.trial import Offload, Precision
from zerobench.estimate.clock.achieved import PAGED_SHARES
from zerobench.estimate.clock.collectives import bytes_per_element, traffic_by_kind, trained_bytes_per_element
from zerobench.estimate.clock.kernels import FP32_BYTES
from zerobench.estimate.time.terms import PASSES, UPDATE, Term, Work, missing, timed
from zerobench.records.instants import OPTIMIZER_STATES

_DIRECTIONS = {
    "passes up": "to the device in the passes",
    "passes down": "to the host in the passes",
    "update up": "to the device at the update",
    "update down": "to the host at the update",
}


def offload(work: Work) -> Term:
    """Bytes over the host link: gradients down and parameters up, 2P/N each in 16 bits (ZeRO-Offload, arXiv 2101.06840,
    section 4); offloaded parameters come up for every all-gather of the passes, at least once.

    DeepSpeed may move them in fp32, twice as much. A link carries both directions at once; the fuller one counts.
    """
    if work.spec.offload_optimizer is Offload.NONE and work.spec.offload_param is Offload.NONE:
        return Term("offload", 0.0, 0.0, "offload: none")
    share = work.partition_bytes
    rate = work.links.host_link_gb_per_s
    if share is None:
        return missing("offload", "number of parameters unknown")
    if rate is None:
        return missing("offload", f"the catalogue has no host link for {work.gpu.name}")
    moved = _host_link_bytes(work, share)
    passes, update = (max(moved[f"{when} up"], moved[f"{when} down"]) / (rate * 1e9) for when in ("passes", "update"))
    sizes = ", ".join(f"{format_bytes(moved[way])} {words}" for way, words in _DIRECTIONS.items() if moved[way])
    return timed("offload", passes, update, f"offload: {sizes} over the host link at {rate:g} GB/s each way")


def _host_link_bytes(work: Work, share: float) -> dict[str, float]:
    offloads_param = work.spec.offload_param is not Offload.NONE
    offloads_states = work.spec.offload_optimizer is not Offload.NONE
    moved = offloaded_share(work) * share if offloads_states else 0.0
    return {
        "passes up": max(share, sum(_gathered_shares(work))) if offloads_param else 0.0,
        "passes down": share if offloads_states else 0.0,
        "update up": 0.0 if offloads_param else moved,
        "update down": share - moved if offloads_param else 0.0,
    }


class Recast(NamedTuple):
    """Elements of new weights that stage 3 copies into their 16 bits between host and device. It waits for the copy, so
    that torch casts on the host, in memory of its own that is not page-locked (stage3.py,
    _reassign_or_swap_out_partitioned_parameters; aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda).
    """

    up: float = 0.0
    """To the device, in 16 bits."""
    down: float = 0.0
    """To the host, in fp32."""


def recast(work: Work) -> Recast:
    """None in fp32, and where the weights lie beside the states."""
    spec, share = work.spec, work.partition_bytes
    if share is None or spec.zero_stage != 3 or spec.precision is Precision.FP32:
        return Recast()
    own, offloaded = share / bytes_per_element(spec.precision), 0.0
    if spec.offload_optimizer is not Offload.NONE:
        offloaded = own * offloaded_share(work)
    return Recast(up=offloaded) if spec.offload_param is Offload.NONE else Recast(down=own - offloaded)


def recast_s(work: Work) -> float:
    """How much longer than page-locked copies of 16 bits these take."""
    up, down = recast(work)
    moved = work.links.host_link_gb_per_s
    if not moved:
        return 0.0
    size = bytes_per_element(work.spec.precision)
    up_s, down_s = size * up * (1 / PAGED_SHARES[True] - 1), down * (FP32_BYTES / PAGED_SHARES[False] - size)
    return (up_s + down_s) / (moved * 1e9)


class Copies(NamedTuple):
    """Seconds of what DeepSpeed copies over the host link in a step's passes, where `offload` knows its own."""

    parameters_s: tuple[float, float] = (0.0, 0.0)
    """Of offloaded parameters to the device, forward and backward."""
    gradients_s: tuple[float, ...] = ()
    """Of gradients in each micro-batch's backward pass."""

    @property
    def total_s(self) -> float:
        """Of all of them."""
        return sum(self.parameters_s) + sum(self.gradients_s)


def copies(work: Work) -> Copies:
    """None where nothing is offloaded.

    Gradients go to the host in 16 bits, and where they are updated there in fp32 too (at stages 1 and 2 in that alone).
    Each micro-batch's sums, but those of stage 2's first, come to the device as well (stage3.py, partition_grads); at
    stage 2 they are of whole tensors (stage_1_and_2.py, async_accumulate_grad_in_cpu_via_gpu).
    """
    spec, share, rate = work.spec, work.partition_bytes, work.links.host_link_gb_per_s
    if Offload.NONE is spec.offload_optimizer is spec.offload_param or share is None or rate is None:
        return Copies()
    if spec.zero_stage is None:
        return Copies()  # FSDP's (`fsdp_copies`)
    moved, micro_batches = _host_link_bytes(work, share), micro_batches_per_step(spec, spec.world_size - 1)
    down = moved["passes down"]
    if spec.zero_stage == 3:
        times = [2 * down] * micro_batches
        times[-1] += 2 * offloaded_share(work) * down
    else:
        sums = max(down, _own_tensors_bytes(work)) if micro_batches > 1 and spec.zero_stage == 2 else 0.0
        times = [sums, *[2 * sums] * (micro_batches - 1)]
        times[-1] += 2 * down
    forward, backward = _gathered_bytes(work) if moved["passes up"] else (0.0, 0.0)
    return Copies((forward / (rate * 1e9), backward / (rate * 1e9)), tuple(nbytes / (rate * 1e9) for nbytes in times))


class FsdpCopies(NamedTuple):
    """Seconds of what FSDP2 copies over the host link in the passes of one micro-batch, all of it in fp32."""

    forward_s: float = 0.0
    """To the device, before each gather (_fsdp_param.py, all_gather_inputs)."""
    backward_s: float = 0.0
    """The same again, of the blocks: the root stays gathered."""
    gradients_s: float = 0.0
    """To the host, after each reduction. The host waits for them (_fsdp_collectives.py, foreach_reduce: where it adds
    them up, or parameters have hooks, as memory is measured by)."""
    added_s: float = 0.0
    """In which it adds them to those of the micro-batch before."""


def fsdp_copies(work: Work) -> FsdpCopies:
    """None where FSDP offloads nothing."""
    spec, share, rate = work.spec, work.partition_bytes, work.links.host_link_gb_per_s
    if spec.offload_param is Offload.NONE or spec.zero_stage is not None or share is None or rate is None:
        return FsdpCopies()
    own_bytes = FP32_BYTES * share / trained_bytes_per_element(spec)
    forward, backward = (_gathered_in_fp32(work, phase) / (rate * 1e9) for phase in PASSES)
    memory = work.links.host_memory_gb_per_s
    added_s = 0.0 if memory is None else _ADDED_TIMES * own_bytes * spec.gpus_per_node / (memory * 1e9)
    return FsdpCopies(forward, backward, own_bytes / (rate * 1e9), added_s)


_ADDED_TIMES = 3
"""Both are read, and the sum is written."""


def _gathered_in_fp32(work: Work, phase: Phase) -> float:
    """Of what is gathered in a pass of a micro-batch, the rank's own part: alone it copies all that others gather."""
    spec, counts = work.spec, work.rank.parameters
    if spec.world_size == 1 and counts is not None:
        blocks = sum(counts.by_component.get(name, 0) for name in ("attention", "mlp"))
        return FP32_BYTES * (counts.total if phase is Phase.FORWARD else spec.reshard_after_forward * blocks)
    traffic = traffic_by_kind(work.rank, spec.precision, phases=(phase,))
    own_bytes = sum(each.message_bytes / each.group_size for each in traffic if each.kind == "all_gather")
    micro_batches = micro_batches_per_step(spec, spec.world_size - 1)
    return FP32_BYTES / bytes_per_element(spec.precision) * own_bytes / micro_batches


def _own_tensors_bytes(work: Work) -> float:
    """Of the tensors that reach into the rank's flat partition, whole; 0.0 where they are not known."""
    own = () if work.setting is None else work.setting.own_tensors
    return bytes_per_element(work.spec.precision) * sum(tensor for tensor, _ in own)


def _gathered_bytes(work: Work) -> tuple[float, float]:
    """Parameters that a rank copies to the device for use, forward and backward: its part of what is gathered, or
    alone all of it.
    """
    forward, backward = _gathered_shares(work)
    setting = work.setting if work.spec.world_size == 1 else None
    if setting is not None and setting.gathers is not None:
        each = bytes_per_element(work.spec.precision) * micro_batches_per_step(work.spec, 0)
        forward, backward = (each * setting.gathers.elements[phase] for phase in PASSES)
    return max(forward, (work.partition_bytes or 0.0) - backward), backward


def offloaded_share(work: Work) -> float:
    """Of an offloaded optimizer's states those that lie on the host or a drive: `offload_optimizer.ratio` leaves whole
    sub-groups of stage 3 on the device, whose gradients pass through the host all the same.
    """
    kept, *elsewhere = (
        work.live_bytes(Phase.STEP, place, *OPTIMIZER_STATES) for place in (Place.DEVICE, Place.HOST, Place.NVME)
    )
    moved = sum(elsewhere)
    return moved / (kept + moved) if kept + moved else 1.0


def _gathered_shares(work: Work) -> tuple[float, float]:
    """The rank's own part of all that is gathered forward and backward: it lies on the device before each all-gather
    (partition_parameters.py, `ds_tensor.to(device)`), and so does its part of the second copy of hpZ, kept where
    the parameters are (`ds_secondary_tensor.to(device)`).
    """
    forward, backward = (
        sum(
            each.message_bytes / each.group_size
            for each in traffic_by_kind(work.rank, work.spec.precision, phases=(phase,))
            if each.kind == "all_gather"
        )
        for phase in PASSES
    )
    return forward, backward


def nvme(work: Work) -> Term:
    """Bytes that the node's ranks read and write on NVMe over the drives' rate, as if both went on at once."""
    if Offload.NVME not in work.spec.offloaded_to:
        return Term("nvme", 0.0, 0.0, "nvme: none")
    rows = [row for row in work.rank.nvme if row.step is StepKind.STEADY]
    rate = work.links.nvme_gb_per_s
    if not rows:
        return missing("nvme", "no bytes were counted")
    if rate is None:
        return missing("nvme", "drive rate not given")
    ranks = work.spec.gpus_per_node
    read, written = ([ranks * getattr(row, name) for row in rows] for name in ("read_bytes", "written_bytes"))
    passes, update = (
        max(
            sum(nbytes for row, nbytes in zip(rows, moved, strict=True) if row.phase in phases)
            for moved in (read, written)
        )
        / (rate * 1e9)
        for phases in (PASSES, UPDATE)
    )
    sentence = f"nvme: {format_bytes(sum(read))} read and {format_bytes(sum(written))} written a node at {rate:g} GB/s"
    return timed("nvme", passes, update, sentence)
