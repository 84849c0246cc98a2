"""Rules for the number of DeepSpeed's swap buffers.

A gathered parameter occupies its buffer until it is partitioned again. From the second step on,
`stage3_max_reuse_distance` keeps parameters gathered at the end of the forward pass if the backward pass needs them
again within that many elements (partitioned_param_coordinator.py, `__params_to_release`); with more of those than
`buffer_count`, the next one raises "Not enough buffers" (partitioned_param_swapper.py, `swap_in`).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from zerobench.common.errors import UserError
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.reading import get, smallest_swapped_bytes
from zerobench.config.derived.host_memory import element_bytes
from zerobench.config.derived.sharding import sub_groups
from zerobench.config.models.architecture import complete
from zerobench.config.models.tensors import block_tensors, parameter_tensors
from zerobench.config.rules.situation import Situation, rules_of
from zerobench.config.trial.trial import Offload, TrialSpec

_FP32_BYTES = 4


def held_buffers(trial: TrialSpec, config: Mapping[str, Any]) -> int:
    """Lower bound of the swapped parameters that are gathered at once at the end of a forward pass.

    Raises UserError if the model's tensors are unknown.
    """
    tensors = parameter_tensors(trial.model)
    distance = int(get(config, "zero_optimization.stage3_max_reuse_distance"))
    if complete(trial.model).get("tie_word_embeddings"):
        tensors = (*tensors[1:], tensors[0])  # the head comes last
    sizes = [size for size, between in zip(tensors, _until_reused(tensors, trial), strict=True) if between < distance]
    parts_bytes = (-(-size // trial.world_size) * element_bytes(trial) for size in sizes)
    return sum(nbytes >= smallest_swapped_bytes(config) for nbytes in parts_bytes)


def _until_reused(tensors: Sequence[int], trial: TrialSpec) -> list[int]:
    """Most elements used between each tensor's use in the forward pass and the next.

    Everything after it is used forward and backward; with recomputation once more, and part of its own block before it.
    """
    behind = [0, *accumulate(reversed(tensors[1:]))][::-1]
    if not trial.activation_checkpointing:
        return [2 * elements for elements in behind]
    block = sum(block_tensors(trial.model)[0])
    return [3 * elements + block for elements in behind]


def _shortage(
    trial: TrialSpec, section: str, count_needed: Callable[[TrialSpec, Mapping[str, Any]], int]
) -> tuple[Mapping[str, Any], int, int] | None:
    """Configuration, needed buffers and available buffers, if swapping of `section` has too few.

    None if there are enough, or the model's tensors are unknown.
    """
    if getattr(trial, section) is not Offload.NVME or trial.adapter is not None:
        return None
    try:
        config = build_ds_config(trial)
        needed = count_needed(trial, config)
    except UserError:
        return None
    available = int(get(config, f"zero_optimization.{section}.buffer_count"))
    return (config, needed, available) if needed > available else None


def _swap_buffers_run_out(s: Situation) -> str | None:
    short = _shortage(s.trial, "offload_param", held_buffers)
    if short is None:
        return None
    config, held, count = short
    distance = int(get(config, "zero_optimization.stage3_max_reuse_distance"))
    return (
        f"offload_param nvme with stage3_max_reuse_distance {distance}: {held} parameters stay gathered at the end of "
        f"the forward pass, each in a buffer, and DeepSpeed fails where there are {count}; use "
        f"stage3_max_reuse_distance 0 or offload_param.buffer_count {held}"
    )


_BUFFERS_OF_A_GROUP = 4
"""fp32 weights, two moments and gradients: states read per swapped sub-group for its update."""


def pipelined_buffers(trial: TrialSpec, config: Mapping[str, Any]) -> int:
    """Buffers that the optimizer's swapper uses at once: for the sub-group being updated, the next one, which
    `pipeline_read` prefetches, and the last one, which `pipeline_write` writes (pipelined_optimizer_swapper.py,
    `swap_in_optimizer_state` and `swap_out_optimizer_state`).

    Raises UserError if the model's tensors are unknown.
    """
    parts = (-(-size // trial.world_size) for size in parameter_tensors(trial.model))
    groups = sub_groups(parts, int(get(config, "zero_optimization.sub_group_size")))
    swapped = sum(_FP32_BYTES * group >= smallest_swapped_bytes(config) for group in groups)
    keys = ("pipeline_read", "pipeline_write")
    at_once = 1 + sum(bool(get(config, f"zero_optimization.offload_optimizer.{key}")) for key in keys)
    return _BUFFERS_OF_A_GROUP * min(swapped, at_once)


def _optimizer_buffers_run_out(s: Situation) -> str | None:
    short = _shortage(s.trial, "offload_optimizer", pipelined_buffers)
    if short is None or short[1] <= _BUFFERS_OF_A_GROUP:  # a count below that is refused by itself
        return None
    _, needed, count = short
    return (
        f"offload_optimizer nvme with pipeline_read or pipeline_write and buffer_count {count}: DeepSpeed fails "
        f"without {_BUFFERS_OF_A_GROUP} buffers for each sub-group under way; "
        f"use offload_optimizer.buffer_count {needed}"
    )


SWAP_RULES = rules_of(globals())
