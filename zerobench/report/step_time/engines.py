"""What a step takes by the engine that runs it: its host's work, and its update's bytes beyond the optimizer's own."""

from __future__ import annotations

import math

from zerobench.report.step_time.collectives import trained_bytes_per_element
from zerobench.report.step_time.terms import Work, updated_parameters
from zerobench.report.step_time.transfers import offloaded_share
from zerobench.spec.optimizers import OPTIMIZERS, Optimizer, without_deepspeed
from zerobench.spec.sharding import state_shard_size
from zerobench.spec.strategy import paper_stage
from zerobench.spec.tensors import named_weights
from zerobench.spec.trial import Offload, TrialSpec
from zerobench.timing.host import BlockIssue, block_issue
from zerobench.timing.passes import Decoder

_MORE_BYTES = {
    **dict.fromkeys(("single", "tensor", "pipeline"), 36),
    "ddp": 38,
    "zero0": 8,
    **dict.fromkeys(("zero1", "zero2", "zero3"), 14),
    "fsdp": 16,
}
"""A parameter of the rank's own: gradients cast to fp32, their norm, clipping, weights cast back, each read and written
once; counted from the operations of simulated steps with a fused AdamW (tests/report/step_time/test_replayed.py)."""
_MORE_THAN_FUSED_ADAM = 30
"""Bytes a parameter that torch's fused AdamW moves beyond DeepSpeed's FusedAdam, of which `moved_bytes` do not know."""

_UNSCALED, _CAST, _OF_TORCH = 8, 6, 8
"""The same on the host under DeepSpeed, and by torch's optimizers there beyond CPUAdam's kernel."""


def issue_of(spec: TrialSpec, decoder: Decoder, *, after: bool = False) -> BlockIssue:
    """What the host does for a block of `decoder`; `after`: what `reduces_after` says."""
    offloads = {spec.offload_optimizer, spec.offload_param} != {Offload.NONE}
    engine = spec.strategy + "-offload" * offloads
    return block_issue(engine, is_gated=decoder.is_gated, owned=owned(spec), reduces_after=after)


def reduces_after(work: Work) -> bool:
    """Whether DeepSpeed reduces all gradients when the last backward pass is done: it has hooks in the pass only where
    it divides gradients, or overlaps (stage_1_and_2.py, create_reduce_and_remove_grad_hooks).
    """
    return work.spec.world_size > 1 and work.spec.zero_stage == 1 and work.case is not None and not work.case.overlaps


def owned(spec: TrialSpec) -> float:
    """The part of the parameters that a rank updates."""
    return 1 / state_shard_size(spec) if paper_stage(spec) else 1.0


def updated_blocks(spec: TrialSpec, layers: int) -> float:
    """How many blocks' tensors the host passes over in the update: at stages 1 and 2 the rank's own, one by one; beside
    frozen ones those that are trained.
    """
    trained = 1.0
    if spec.frozen is not None:
        weights = [weight for block in named_weights(spec.model, spec.frozen).blocks for weight in block]
        trained = sum(weight.is_trained for weight in weights) / len(weights)
    return layers * trained * (owned(spec) if spec.zero_stage in {1, 2} else 1.0)


def piece_launches(work: Work) -> float:
    """Kernels of an update on the device that works piece after piece: of a flat partition, or else of each tensor, of
    which one too small for the optimizer's blocks takes half as many.
    """
    spec, info = work.spec, OPTIMIZERS[work.spec.optimizer]
    elements, least = info.temporaries.piece_elements, max((state.least_elements for state in info.states), default=0)
    if elements is None or not _updates_on_device(spec):
        return 0.0
    if paper_stage(spec) or spec.adapter is not None:
        return info.piece_launches * updated_parameters(work) / elements
    sizes = [weight.size for weight in named_weights(spec.model, spec.frozen).all if weight.is_trained]
    return info.piece_launches * sum(math.ceil(size / elements) if size >= least else 0.5 for size in sizes)


def more_update_bytes(work: Work) -> float:
    """That the update moves through device memory beyond the states, gradients and parameters of the lower bound."""
    return _more_bytes(work.spec) * updated_parameters(work) if _updates_on_device(work.spec) else 0.0


def optimizers_own_bytes(work: Work) -> float:
    """Of these, what the optimizer moves."""
    return _optimizers_bytes(work.spec) * updated_parameters(work) if _updates_on_device(work.spec) else 0.0


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

    DeepSpeed unscales and clips gradients, and casts new weights to 16 bits unless the copy to the device does.
    """
    if spec.zero_stage is None:
        return 2 * trained_bytes_per_element(spec) + _more_bytes(spec)
    casts = spec.zero_stage != 3 or spec.offload_param is not Offload.NONE
    of_torch = 0 if spec.optimizer is Optimizer.CPU_ADAM else _OF_TORCH + without_deepspeed(spec.optimizer).moved_bytes
    return _UNSCALED + _CAST * casts + of_torch


def _more_bytes(spec: TrialSpec) -> int:
    """A parameter."""
    return _MORE_BYTES.get(spec.strategy, 0) + _optimizers_bytes(spec)


def _optimizers_bytes(spec: TrialSpec) -> int:
    more = 0 if spec.zero_stage is None or spec.optimizer is Optimizer.FUSED_ADAMW else _MORE_THAN_FUSED_ADAM
    return without_deepspeed(spec.optimizer).moved_bytes + more
