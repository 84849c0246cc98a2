"""Walks the tensors that an engine holds and names each: identity, the strongest evidence there is.

DeepSpeed 0.19 keeps its states in private lists of its optimizers; each walk names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zerobench.common.vocabulary import Category, Place
from zerobench.config.trial.optimizers import STATE_CATEGORIES
from zerobench.records.records import Holder


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor and its category. `place`: None if its own device decides; `holder`: None for the engine."""

    tensor: torch.Tensor
    category: Category
    place: Place | None = None
    holder: Holder | None = None


Walk = Callable[[Any], Iterator[NamedTensor]]


def walk_module(module: torch.nn.Module, *, offloads_parameters: bool = False) -> Iterator[NamedTensor]:
    """Parameters, their gradients and buffers of a module, under any ZeRO stage."""
    for parameter in module.parameters():
        if hasattr(parameter, "ds_tensor"):
            yield from _walk_partitioned(parameter, offloaded=offloads_parameters)
        else:
            yield NamedTensor(parameter.data, Category.PARAMETERS, holder=Holder.MODEL)
        if parameter.grad is not None:
            yield NamedTensor(parameter.grad, Category.GRADIENTS, holder=Holder.MODEL)
        yield from _name([getattr(parameter, "grad_accum", None)], Category.GRADIENTS)
    for buffer in module.buffers():
        yield NamedTensor(buffer, Category.MODEL_BUFFERS, holder=Holder.MODEL)
    for owner in (*module.modules(), *module.parameters()):
        yield from _walk_scales(vars(owner))


def _walk_scales(held: Mapping[str, Any]) -> Iterator[NamedTensor]:
    """Yield the scales of bitsandbytes' codes, which are no buffers: 4-bit scales are on the matrix or its parameter
    (functional.py, QuantState; they may be quantised themselves), 8-bit ones on the parameter (nn/modules.py).
    """
    yield from _name([held.get("SCB")], Category.MODEL_BUFFERS)
    state = held.get("quant_state")
    while state is not None:
        yield from _name([state.absmax, state.code, state.offset], Category.MODEL_BUFFERS)
        state = state.state2


def _walk_partitioned(parameter: Any, *, offloaded: bool) -> Iterator[NamedTensor]:
    """Yield a ZeRO-3 parameter: its partition (ds_tensor) and, while gathered, its full data (partition_parameters.py).

    With offload, parameters below the persistence threshold stay on the device (`_partition_param`), but hpZ's second
    copy of them does not (`_partition_param_sec`).
    """
    on_host = offloaded and not parameter.ds_persist
    yield NamedTensor(parameter.ds_tensor.data, Category.PARAMETERS, Place.HOST if on_host else None)
    if parameter.data.numel() == parameter.ds_numel:
        yield NamedTensor(parameter.data, Category.GATHERED_PARAMETERS)
    secondary = getattr(parameter, "ds_secondary_tensor", None)
    if secondary is not None:
        yield NamedTensor(secondary.data, Category.PARAMETERS, Place.HOST if offloaded else None)


def walk_optimizer_states(optimizer: Any, place: Place | None = None) -> Iterator[NamedTensor]:
    """States of a torch optimizer for each parameter (torch/optim: exp_avg, exp_avg_sq, momentum_buffer, step)."""
    for state in optimizer.state.values():
        yield from _walk_state(state, place)


def _walk_state(state: Mapping[str, Any], place: Place | None) -> Iterator[NamedTensor]:
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            category = STATE_CATEGORIES.get(key, Category.OTHER_OPTIMIZER_STATES)
            yield NamedTensor(value, category, place, Holder.OPTIMIZER)


def walk_zero12(zero: Any) -> Iterator[NamedTensor]:
    """Tensors of stages 1 and 2 (deepspeed/runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer)."""
    place = Place.HOST if zero.cpu_offload else None
    yield from _name(zero.bit16_groups_flat, Category.PARAMETERS)
    yield from walk_masters(zero.single_partition_of_fp32_groups, place)
    yield from _name(zero.averaged_gradients.values(), Category.GRADIENTS)
    yield from _name([zero.__dict__.get("grads_in_partition")], Category.GRADIENTS)
    large = zero.extra_large_param_to_reduce  # one, before DeepSpeed had a bucket for each data type
    yield from _name(large.values() if isinstance(large, Mapping) else [large], Category.GRADIENTS)
    yield from _name(_reduce_buckets(zero), Category.REDUCE_BUFFERS)
    if zero.cpu_offload:
        yield from _name(zero.accumulated_grads_in_cpu.values(), Category.GRADIENTS, place)
        yield from _name(getattr(zero, "param_buffer_of_bit16_for_cpu_offload_groups", []), Category.STAGING, place)
        yield from _name([zero.temp_grad_buffer_for_cpu_offload], Category.STAGING, place)
        yield from _name([zero.temp_grad_buffer_for_gpu_offload], Category.REDUCE_BUFFERS)
    yield from walk_optimizer_states(zero.optimizer, place)


def walk_zero3(zero: Any) -> Iterator[NamedTensor]:
    """Tensors of stage 3 (deepspeed/runtime/zero/stage3.py, DeepSpeedZeroOptimizer_Stage3), including its swappers."""
    optimizer_place = Place.HOST if zero.offload_optimizer else None
    param_place = Place.HOST if zero.offload_param else None
    yield from _name(zero.fp16_partitioned_groups_flat, Category.PARAMETERS, param_place)
    yield from _name(zero.param_groups_fp16_flat_cpu_memory, Category.PARAMETERS, Place.HOST)
    yield from _name([getattr(zero, "lp_param_buffer", None)], Category.PARAMETERS, param_place)
    places = _places_of_sub_groups(zero)
    for master, place in zip(zero.fp32_partitioned_groups_flat, places, strict=True):
        yield from walk_masters([master], place)
        yield from _walk_state(zero.optimizer.state.get(master, {}), place)
    yield from _name([zero.grad_partitions_flat_buffer], Category.GRADIENTS, optimizer_place)
    yield from _name(zero.averaged_gradients.values(), Category.GRADIENTS, optimizer_place)
    yield from _name(_reduce_buckets(zero), Category.REDUCE_BUFFERS)
    backup = zero.__dict__.get("backup_optimizer")
    if backup is not None:
        yield from walk_optimizer_states(backup)
    yield from _walk_swappers(zero)


def _reduce_buckets(zero: Any) -> list[Any]:
    """Buffers of the reduce buckets, one for each data type; DeepSpeed before 0.17.2 has a single one."""
    if hasattr(zero, "ipg_buckets"):
        return [bucket.buffer for bucket in zero.ipg_buckets.values()]
    return [
        getattr(zero, name, None) for name in ("ipg_buffer", "_DeepSpeedZeroOptimizer_Stage3__ipg_bucket_flat_buffer")
    ]


def _places_of_sub_groups(zero: Any) -> list[Place | None]:
    """Place of each sub-group's states: with an `offload_optimizer.ratio` below 1 the first stay on the device.

    `_create_fp32_partitions` stores it in `subgroup_to_device`, where CPU ranks see no difference, so the rule is
    repeated here. Sub-groups on the device are updated by `backup_optimizer`.
    """
    count = len(zero.fp32_partitioned_groups_flat)
    on_device = int((1 - zero.partial_offload) * count) if zero.offload_optimizer else count
    return [None if i < on_device else Place.HOST for i in range(count)]


def _walk_swappers(zero: Any) -> Iterator[NamedTensor]:
    """Page-locked buffers of the NVMe swappers (deepspeed/runtime/swap_tensor)."""
    swapper = zero.optimizer_swapper
    if swapper is not None:
        yield from _name(swapper.swap_buffer_manager.all_buffers, Category.PINNED_BUFFERS, Place.HOST)
        for info in swapper.swap_params_info.values():
            for context in info.tensors:
                yield from _name([context.swap_tensor], Category.STAGING, Place.HOST)
    param_swapper = getattr(next(iter(zero.module.parameters()), None), "nvme_swapper", None)
    if param_swapper is not None:
        yield from _name([param_swapper.buffers], Category.PINNED_BUFFERS, Place.HOST)
        yield from _name([param_swapper.partitioned_swap_buffer], Category.PINNED_BUFFERS, Place.HOST)


def walk_half_precision(optimizer: Any) -> Iterator[NamedTensor]:
    """Tensors of stage 0 in 16 bits (deepspeed/runtime/fp16/fused_optimizer.py and unfused_optimizer.py)."""
    yield from _name(getattr(optimizer, "fp16_groups_flat", []), Category.PARAMETERS)
    yield from walk_masters(getattr(optimizer, "fp32_groups_flat", None) or _flat(optimizer.fp32_groups), None)
    yield from walk_optimizer_states(optimizer.optimizer)


def walk_bf16(optimizer: Any) -> Iterator[NamedTensor]:
    """Tensors of stage 1 with fp32 gradient accumulation (deepspeed/runtime/bf16_optimizer.py, BF16_Optimizer)."""
    yield from _name(optimizer.bf16_groups_flat, Category.PARAMETERS)
    yield from _name(optimizer.fp32_groups_gradients_flat, Category.GRADIENTS)
    yield from walk_masters(optimizer.fp32_groups_flat_partition, None)
    yield from walk_optimizer_states(optimizer.optimizer)


def walk_zenflow(zero: Any) -> Iterator[NamedTensor]:
    """Tensors that ZenFlow adds to those of the stage (deepspeed/runtime/zenflow).

    Columns that are updated at once have moments, gradients and indices. If the update of the rest overlaps, each
    master has two gradients and a snapshot.
    """
    host = Place.HOST if zero.offload_selective_optimizer else None
    yield from walk_optimizer_states(zero.selective_optimizer)
    for parameter in zero.module.parameters() if zero.zf_stage3 else _flat(zero.bit16_groups):
        attributes = parameter.__dict__
        yield from _name([attributes.get("exp_avg_cpu_data")], Category.FIRST_MOMENT, Place.HOST)
        yield from _name([attributes.get("exp_avg_sq_cpu_data")], Category.SECOND_MOMENT, Place.HOST)
        yield from _name([attributes.get("selected_grad")], Category.GRADIENTS)
        yield from _name([attributes.get("temp_selected_param")], Category.STAGING, host)
        indices = [attributes.get("selected_indices"), attributes.get("partition_selected_indices")]
        yield from _name(indices, Category.OTHER_OPTIMIZER_STATES)
    for master in zero.fp32_partitioned_groups_flat if zero.zf_stage3 else zero.single_partition_of_fp32_groups:
        yield from _name(getattr(master, "overlap_grad", []), Category.GRADIENTS, Place.HOST)
        yield from _name([getattr(master, "stale_param", None)], Category.STAGING, Place.HOST)
        # In an emulated rank these are tensors of ZenFlow's own process (zerobench/emulator/inside/helpers.py).
        yield from _name(getattr(master, "overlap_exp_avg", []), Category.FIRST_MOMENT, Place.HOST)
        yield from _name(getattr(master, "overlap_exp_avg_sq", []), Category.SECOND_MOMENT, Place.HOST)


def walk_superoffload(helper: Any) -> Iterator[NamedTensor]:
    """Tensors of SuperOffload's own process, which an emulated rank plays (zerobench/emulator/inside/helpers.py)."""
    yield from _name([helper.__dict__.get("gradient_buffer")], Category.PINNED_BUFFERS, Place.HOST)
    for state in helper.__dict__.get("state", {}).values():
        yield from _walk_state(state, Place.HOST)


_WALKS: dict[str, Walk] = {
    "DeepSpeedZeroOptimizer": walk_zero12,
    "DeepSpeedZeroOptimizer_Stage3": walk_zero3,
    "FP16_Optimizer": walk_half_precision,
    "FP16_UnfusedOptimizer": walk_half_precision,
    "BF16_Optimizer": walk_bf16,
}
"""By class name: comparing classes would import DeepSpeed."""


def walk_of(optimizer: type) -> Walk:
    """Walk for optimizers of this class: that of the nearest known ancestor (ZenFlow's and SuperOffload's derive from
    stages 2 and 3); one that DeepSpeed did not wrap is torch's.
    """
    return next(_known(optimizer), walk_optimizer_states)


def is_deepspeeds(optimizer: type) -> bool:
    """True if DeepSpeed wraps a torch optimizer in this class."""
    return next(_known(optimizer), None) is not None


def _known(optimizer: type) -> Iterator[Walk]:
    return (_WALKS[base.__name__] for base in optimizer.__mro__ if base.__name__ in _WALKS)


def walk_deepspeed(engine: Any) -> Iterator[NamedTensor]:
    """All tensors of a DeepSpeed engine, whatever its stage and precision."""
    optimizer = engine.optimizer
    yield from walk_module(engine.module, offloads_parameters=bool(getattr(optimizer, "offload_param", False)))
    yield from walk_of(type(optimizer))(optimizer)
    if hasattr(optimizer, "selective_optimizer"):
        yield from walk_zenflow(optimizer)
    if hasattr(optimizer, "superoffload_cpu_optimizer"):
        yield from walk_superoffload(optimizer.superoffload_cpu_optimizer)


def walk_masters(masters: Iterable[Any], place: Place | None = None) -> Iterator[NamedTensor]:
    """fp32 master weights, and their gradients for the optimizer."""
    for master in masters:
        yield from _name([master], Category.MASTER_WEIGHTS, place)
        if getattr(master, "grad", None) is not None:
            yield from _name([master.grad], Category.GRADIENTS, place)


def _flat(groups: Iterable[Any]) -> list[Any]:
    return [tensor for group in groups for tensor in group]


def _name(values: Iterable[Any], category: Category, place: Place | None = None) -> Iterator[NamedTensor]:
    """Name every tensor in a nested list; skips None and other values."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield NamedTensor(value, category, place)
        elif isinstance(value, (list, tuple)):
            yield from _name(value, category, place)
        elif hasattr(value, "buffer") and isinstance(value.buffer, torch.Tensor):
            yield NamedTensor(value.buffer, category, place)
