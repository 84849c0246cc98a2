"""What a step takes by the engine that runs it: its host's work, and its update's bytes beyond the optimizer's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from zerobench.common.malloc import MAPPED_FROM_BYTES
from zerobench.config.derived.batch import micro_batches_per_step
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.derived.strategy import paper_stage
from zerobench.config.models.tensors import adapter_tensors, layout_of, named_weights
from zerobench.config.trial.adapter import lora_of
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer, plain_optimizer
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.estimate.clock.collectives import bytes_per_element, trained_bytes_per_element
from zerobench.estimate.clock.device import Device
from zerobench.estimate.clock.host import LLAMAS_TENSORS, NOTHING, UNFUSED, BlockIssue, Issue, block_issue, engine_of
from zerobench.estimate.clock.kernels import FP32_BYTES, moved_by_element_s, moved_s
from zerobench.estimate.time.passes import Decoder
from zerobench.estimate.time.terms import Work, update_seconds, updated_parameters
from zerobench.estimate.time.transfers import offloaded_share, recast

_MORE_BYTES = {
    **dict.fromkeys(("single", "tensor", "pipeline"), 36),
    "ddp": 38,
    "zero0": 36,
    **dict.fromkeys(("zero1", "zero2", "zero3"), 42),
    "fsdp": 16,
}
"""A parameter of the rank's own: gradients cast to fp32, their norm, clipping, weights cast back, each read and written
once; counted from the operations of simulated steps with a fused AdamW (tests/estimate/time/test_replayed.py)."""
_ONCE_MORE = 4
"""The same of DeepSpeed's gradients where stages 1 and 2 have one rank, and where the optimizer is not DeepSpeed's."""
_UNSCALED, _CAST, _OF_TORCH = 8, 6, 8
"""The same on the host under DeepSpeed, and by torch's optimizers there beyond CPUAdam's kernel."""


def issue_of(spec: TrialSpec, decoder: Decoder, *, after: bool = False) -> BlockIssue:
    """What the host does for a block of `decoder`; `after`: what `reduces_after` says."""
    return block_issue(
        engine_of(spec),
        is_gated=decoder.is_gated,
        owned=owned(spec),
        reduces_after=after,
        tensors=_tensors(spec),
        micro_batches=micro_batches_per_step(spec, spec.world_size - 1),
    )


def _tensors(spec: TrialSpec) -> int:
    """Parameters of a block; of one with adapters, as many as a Llama's."""
    layout = None if spec.adapter is not None else layout_of(spec.model)
    return LLAMAS_TENSORS if layout is None else len(layout.layer)


def reduces_after(work: Work) -> bool:
    """Whether DeepSpeed reduces all gradients when the last backward pass is done: it has hooks in the pass only where
    it divides gradients, or overlaps (stage_1_and_2.py, create_reduce_and_remove_grad_hooks).
    """
    return work.spec.world_size > 1 and work.spec.zero_stage == 1 and work.case is not None and not work.case.overlaps


def owned(spec: TrialSpec) -> float:
    """The part of the parameters that a rank updates."""
    return 1 / state_shard_size(spec) if paper_stage(spec) else 1.0


def updated_blocks(spec: TrialSpec, layers: int) -> float:
    """How many blocks' tensors the host passes over in the update, of a Llama's nine each: at stages 1 and 2 a rank's
    own in the mean, one by one; beside frozen ones those that are trained.
    """
    trained: float = _tensors(spec)
    if spec.adapter is None and spec.frozen is not None:
        blocks = named_weights(spec.model, spec.frozen).blocks
        trained = sum(weight.is_trained for block in blocks for weight in block) / len(blocks)
    return layers * trained / LLAMAS_TENSORS * (owned(spec) if spec.zero_stage in {1, 2} else 1.0)


def lacking_blocks(work: Work, layers: int) -> float:
    """By how many blocks' tensors the rank has fewer than a rank in the mean: the first has the embedding and few."""
    setting = work.setting if work.spec.zero_stage in {1, 2} else None
    if setting is None:
        return 0.0
    own = len(replace(setting, rank=work.rank.rank).own_tensors)
    return max(0.0, updated_blocks(work.spec, layers) - own / LLAMAS_TENSORS)


def piece_launches(work: Work) -> float:
    """Kernels of an update on the device that works tensor after tensor, or piece after piece of each: of a flat
    partition, or else of the model's own, of which one too small for the optimizer's blocks takes two in seven.
    """
    spec, info = work.spec, plain_optimizer(work.spec.optimizer)
    if not info.piece_launches or not _updates_on_device(spec):
        return 0.0
    elements, least = info.temporaries.piece_elements, max((state.least_elements for state in info.states), default=0)
    sizes = [updated_parameters(work)] if spec.zero_stage else _trained_tensors(spec)
    pieces = (1 if elements is None else math.ceil(size / elements) if size >= least else 2 / 7 for size in sizes)
    return info.piece_launches * sum(pieces)


def _trained_tensors(spec: TrialSpec) -> Sequence[int]:
    """Elements of each."""
    if spec.adapter is not None:
        return adapter_tensors(spec.model, lora_of(spec.adapter))
    if spec.frozen is not None:
        return [weight.size for weight in named_weights(spec.model, spec.frozen).all if weight.is_trained]
    layout = layout_of(spec.model)
    return [] if layout is None else layout.all


def late_update_s(work: Work, device: Device, decoder: Decoder, *, ahead_s: float) -> float:
    """How long the GPU waits for the host in an update, where the host is `ahead_s` ahead when backward ends.

    DeepSpeed searches each gradient for infinities, adds up its squares, and then works on all at once; it waits for
    each, at stage 0 for the search of each gradient (runtime/utils.py, has_overflow_serial). Stage 3 searches in
    its norm, and waits for its reduction as backward ends (stage3.py, independent_gradient_partition_epilogue). At
    stage 0 torch's optimizer updates tensors of their own, and each weight is copied back while its kernels, which are
    long, still run (fp16/unfused_optimizer.py, step).
    """
    if device.host is None:
        return 0.0
    stage, spec, host = work.spec.zero_stage, work.spec, device.host.in_update
    block, blocks = issue_of(spec, decoder).update, updated_blocks(spec, decoder.layers)
    issue, then = block.times(blocks), Issue(0.0, piece_launches(work))
    kernels_s = device_update_s(work, device)
    if stage is None:
        beside_s = kernels_s + issue.plus(then).queued_s(host, ahead_s)
        first_late_s = issue.late_s(host, ahead_s=ahead_s, beside_s=kernels_s)
        return max(first_late_s, issue.plus(then).late_s(host, ahead_s=0.0, beside_s=beside_s))
    search_s, norm_s = (
        moved_by_element_s(device, nbytes * updated_parameters(work)) for nbytes in (_SEARCH_BYTES, _NORM_BYTES)
    )
    searching = NOTHING if stage == 3 else issue.times(_SEARCHING)
    issue = issue.less(searching)
    if stage == 0:
        ahead_s = search_s = 0.0
    if engine_of(spec) == UNFUSED:
        copying = block.times(blocks * LLAMAS_TENSORS / block.launches)
        issue, then = issue.less(copying), then.plus(copying)
    beside_s = norm_s + kernels_s - engines_update_s(work, device)
    return searching.late_s(host, ahead_s=ahead_s, beside_s=search_s) + max(
        issue.late_s(host, ahead_s=0.0, beside_s=norm_s),
        issue.plus(then).late_s(host, ahead_s=0.0, beside_s=beside_s),
    )


_SEARCHING = 0.845
"""Of the launches of an update, by DeepSpeed's search for infinities."""
_SEARCH_BYTES, _NORM_BYTES = 4, 18
"""A parameter that the search and the norm move, of `_MORE_BYTES` (simulated steps of all stages)."""


def more_update_bytes(work: Work) -> float:
    """That the update moves through device memory beyond the states, gradients and parameters of the lower bound."""
    return _more_bytes(work.spec) * updated_parameters(work) if _updates_on_device(work.spec) else 0.0


def device_update_s(work: Work, device: Device) -> float:
    """Seconds of an update's kernels on the device."""
    states_s, beside_s = update_seconds(work)[0] / device.rates.memory_share, engines_update_s(work, device)
    parameters = updated_parameters(work) if _updates_on_device(work.spec) else 0.0
    return states_s + beside_s + moved_s(device, _optimizers_bytes(work.spec) * parameters)


def engines_update_s(work: Work, device: Device) -> float:
    """Of these, what the engine does beside its optimizer: DeepSpeed casts, adds up squares and searches for infinities
    element by element.
    """
    moved = moved_s if work.spec.zero_stage is None else moved_by_element_s
    return moved(device, _engines_bytes(work.spec) * updated_parameters(work)) if _updates_on_device(work.spec) else 0.0


def _updates_on_device(spec: TrialSpec) -> bool:
    return spec.offload_optimizer is Offload.NONE


def more_host_update_bytes(work: Work) -> float:
    """The same through the host's memory by all ranks of a node, where states are updated there."""
    spec, share = work.spec, work.partition_bytes
    if spec.offload_optimizer is Offload.NONE or share is None:
        return 0.0
    own = offloaded_share(work) * share / trained_bytes_per_element(spec)
    return spec.gpus_per_node * own * _more_host_bytes(spec)


def _more_host_bytes(spec: TrialSpec) -> int:
    """A parameter: FSDP's update is of torch's operations on the host as on a device, gradients and parameters with it.

    DeepSpeed unscales and clips gradients, and casts new weights to 16 bits.
    """
    if spec.zero_stage is None:
        return 2 * trained_bytes_per_element(spec) + _more_bytes(spec)
    of_torch = 0 if spec.optimizer is Optimizer.CPU_ADAM else _OF_TORCH + plain_optimizer(spec.optimizer).moved_bytes
    return _UNSCALED + _CAST + of_torch


def recast_host_bytes(work: Work) -> float:
    """What the host reads and writes in casting weights that states on the device have made."""
    return _CAST * recast(work).down


def mapped_update_bytes(work: Work) -> float:
    """That the rank's update maps anew on the host: roots and quotients of torch's optimizers, which loop over tensors
    there, and what new weights are cast from or to. malloc keeps what is smaller when it is freed.
    """
    return sum(nbytes for nbytes in _made_on_host(work) if nbytes >= MAPPED_FROM_BYTES)


def _made_on_host(work: Work) -> Iterator[float]:
    """Bytes of each tensor that the update makes there, and frees."""
    spec, (up, down) = work.spec, recast(work)
    yield bytes_per_element(spec.precision) * up
    if down:  # to a drive tensor by tensor (stage3.py, _partitioned_params_swap_out)
        sizes = _own_tensors(spec) if spec.offload_param is Offload.NVME else [down]
        yield from (FP32_BYTES * size for size in sizes)
    temporaries = (OPTIMIZERS[spec.optimizer] if spec.zero_stage else plain_optimizer(spec.optimizer)).temporaries
    if spec.offload_optimizer is not Offload.NONE and work.partition_bytes and temporaries.piece_elements is None:
        own = offloaded_share(work) * work.partition_bytes / trained_bytes_per_element(spec)
        for size in _own_tensors(spec) if spec.zero_stage is None else [own]:
            yield from [FP32_BYTES * size] * (temporaries.loop_bytes // FP32_BYTES)


def _own_tensors(spec: TrialSpec) -> list[float]:
    """Elements of each tensor that a rank updates."""
    return [size * owned(spec) for size in _trained_tensors(spec)]


def _more_bytes(spec: TrialSpec) -> int:
    """A parameter."""
    return _engines_bytes(spec) + _optimizers_bytes(spec)


def _engines_bytes(spec: TrialSpec) -> int:
    alone = spec.zero_stage in {1, 2} and spec.world_size == 1
    of_torch = spec.zero_stage is not None and spec.optimizer is not Optimizer.FUSED_ADAMW
    return _MORE_BYTES.get(spec.strategy, 0) + _ONCE_MORE * (alone + of_torch)


def _optimizers_bytes(spec: TrialSpec) -> int:
    """Beyond what a fused AdamW reads and writes."""
    return plain_optimizer(spec.optimizer).moved_bytes
