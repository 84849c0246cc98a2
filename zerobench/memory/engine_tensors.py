"""Walk the tensors that an engine really holds and say what each is: identity, the strongest evidence there is.

DeepSpeed 0.19 keeps its states in private lists of its optimizers; their names are given beside each walk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from zerobench.records import Category, Place


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor and what it is; `place` is None where the tensor's own device tells."""

    tensor: torch.Tensor
    category: Category
    place: Place | None = None


def walk_module(module: torch.nn.Module, *, offloads_parameters: bool = False) -> Iterator[Named]:
    """Parameters, their gradients and buffers of a module, under any ZeRO stage."""
    for parameter in module.parameters():
        if hasattr(parameter, "ds_tensor"):
            yield from _walk_partitioned(parameter, offloaded=offloads_parameters)
        else:
            yield Named(parameter.data, Category.PARAMETERS)
        if parameter.grad is not None:
            yield Named(parameter.grad, Category.GRADIENTS)
        yield from _name([getattr(parameter, "grad_accum", None)], Category.GRADIENTS)
    for buffer in module.buffers():
        yield Named(buffer, Category.MODEL_BUFFERS)


def _walk_partitioned(parameter: Any, *, offloaded: bool) -> Iterator[Named]:
    """A ZeRO-3 parameter: its partition (ds_tensor) and, while gathered, its full data (partition_parameters.py).

    Under offload, parameters below the persistence threshold stay on the device (`_partition_param`); hpZ's second copy
    of them does not (`_partition_param_sec`).
    """
    on_host = offloaded and not parameter.ds_persist
    yield Named(parameter.ds_tensor.data, Category.PARAMETERS, Place.HOST if on_host else None)
    if parameter.data.numel() == parameter.ds_numel:
        yield Named(parameter.data, Category.GATHERED_PARAMETERS)
    secondary = getattr(parameter, "ds_secondary_tensor", None)
    if secondary is not None:
        yield Named(secondary.data, Category.PARAMETERS, Place.HOST if offloaded else None)


def walk_optimizer_states(optimizer: Any, place: Place | None = None) -> Iterator[Named]:
    """What a torch optimizer keeps for each parameter (torch/optim: exp_avg, exp_avg_sq, momentum_buffer, step)."""
    names = {
        "exp_avg": Category.FIRST_MOMENT,
        "momentum_buffer": Category.FIRST_MOMENT,
        "exp_avg_sq": Category.SECOND_MOMENT,
    }
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield Named(value, names.get(key, Category.OTHER_OPTIMIZER_STATES), place)


def walk_zero12(zero: Any) -> Iterator[Named]:
    """Stage 1 and 2 (deepspeed/runtime/zero/stage_1_and_2.py, DeepSpeedZeroOptimizer)."""
    place = Place.HOST if zero.cpu_offload else None
    yield from _name(zero.bit16_groups_flat, Category.PARAMETERS)
    yield from walk_masters(zero.single_partition_of_fp32_groups, place)
    yield from _name(zero.averaged_gradients.values(), Category.GRADIENTS)
    yield from _name([zero.__dict__.get("grads_in_partition")], Category.GRADIENTS)
    yield from _name(zero.extra_large_param_to_reduce.values(), Category.GRADIENTS)
    yield from _name([bucket.buffer for bucket in zero.ipg_buckets.values()], Category.REDUCE_BUFFERS)
    if zero.cpu_offload:
        yield from _name(zero.accumulated_grads_in_cpu.values(), Category.GRADIENTS, place)
        yield from _name(zero.param_buffer_of_bit16_for_cpu_offload_groups, Category.STAGING, place)
        yield from _name([zero.temp_grad_buffer_for_cpu_offload], Category.STAGING, place)
        yield from _name([zero.temp_grad_buffer_for_gpu_offload], Category.REDUCE_BUFFERS)
    yield from walk_optimizer_states(zero.optimizer, place)


def walk_zero3(zero: Any) -> Iterator[Named]:
    """Stage 3 (deepspeed/runtime/zero/stage3.py, DeepSpeedZeroOptimizer_Stage3), its swappers included."""
    optimizer_place = Place.HOST if zero.offload_optimizer else None
    param_place = Place.HOST if zero.offload_param else None
    yield from _name(zero.fp16_partitioned_groups_flat, Category.PARAMETERS, param_place)
    yield from _name(zero.param_groups_fp16_flat_cpu_memory, Category.PARAMETERS, Place.HOST)
    yield from _name([getattr(zero, "lp_param_buffer", None)], Category.PARAMETERS, param_place)
    yield from walk_masters(zero.fp32_partitioned_groups_flat, optimizer_place)
    yield from _name([zero.grad_partitions_flat_buffer], Category.GRADIENTS, optimizer_place)
    yield from _name(zero.averaged_gradients.values(), Category.GRADIENTS, optimizer_place)
    yield from _name([bucket.buffer for bucket in zero.ipg_buckets.values()], Category.REDUCE_BUFFERS)
    yield from walk_optimizer_states(zero.optimizer, optimizer_place)
    yield from _walk_swappers(zero)


def _walk_swappers(zero: Any) -> Iterator[Named]:
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


def walk_half_precision(optimizer: Any) -> Iterator[Named]:
    """Stage 0 in 16 bits (deepspeed/runtime/fp16/fused_optimizer.py and unfused_optimizer.py)."""
    yield from _name(getattr(optimizer, "fp16_groups_flat", []), Category.PARAMETERS)
    yield from walk_masters(getattr(optimizer, "fp32_groups_flat", None) or _flat(optimizer.fp32_groups), None)
    yield from walk_optimizer_states(optimizer.optimizer)


def walk_bf16(optimizer: Any) -> Iterator[Named]:
    """Stage 1 with fp32 gradient accumulation (deepspeed/runtime/bf16_optimizer.py, BF16_Optimizer)."""
    yield from _name(optimizer.bf16_groups_flat, Category.PARAMETERS)
    yield from _name(optimizer.fp32_groups_gradients_flat, Category.GRADIENTS)
    yield from walk_masters(optimizer.fp32_groups_flat_partition, None)
    yield from walk_optimizer_states(optimizer.optimizer)


def walk_deepspeed(engine: Any) -> Iterator[Named]:
    """Everything that a DeepSpeed engine holds, whatever its stage and precision."""
    optimizer = engine.optimizer
    walkers = {
        "DeepSpeedZeroOptimizer": walk_zero12,
        "DeepSpeedZeroOptimizer_Stage3": walk_zero3,
        "FP16_Optimizer": walk_half_precision,
        "FP16_UnfusedOptimizer": walk_half_precision,
        "BF16_Optimizer": walk_bf16,
    }
    walk = walkers.get(type(optimizer).__name__, walk_optimizer_states)
    yield from walk_module(engine.module, offloads_parameters=bool(getattr(optimizer, "offload_param", False)))
    yield from walk(optimizer)


def walk_masters(masters: Iterable[Any], place: Place | None = None) -> Iterator[Named]:
    """fp32 master weights, and the gradients that the optimizer takes from them."""
    for master in masters:
        yield from _name([master], Category.MASTER_WEIGHTS, place)
        if getattr(master, "grad", None) is not None:
            yield from _name([master.grad], Category.GRADIENTS, place)


def _flat(groups: Iterable[Any]) -> list[Any]:
    return [tensor for group in groups for tensor in group]


def _name(values: Iterable[Any], category: Category, place: Place | None = None) -> Iterator[Named]:
    """Name every tensor in a nested list; None and other things are passed over."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield Named(value, category, place)
        elif isinstance(value, (list, tuple)):
            yield from _name(value, category, place)
        elif hasattr(value, "buffer") and isinstance(value.buffer, torch.Tensor):
            yield Named(value.buffer, category, place)
