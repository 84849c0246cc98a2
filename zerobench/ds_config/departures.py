"""Where DeepSpeed's memory departs from the ZeRO paper's terms, in sentences with this configuration's figures.

The paper (arXiv 1910.02054, section 5) counts, in 16-bit training with Adam, 2 bytes a parameter for the weights, 2
for the gradients and 12 for the optimizer states, each divided by the ranks or not. What DeepSpeed keeps beside
them was read in the source of DeepSpeed 0.19.8 and then seen, byte for byte, in a count of tensor storages; each
function below names the source file. P is the number of parameters, N the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerobench.ds_config.build import build_ds_config
from zerobench.ds_config.keys import default
from zerobench.ds_config.reading import device_of, get, optimizer_of, precision_of
from zerobench.spec.trial import Offload, Optimizer, Precision, TrialSpec
from zerobench.units import format_bytes

_STAGE_0_BUCKET = 500_000_000
"""Elements all-reduced at a time without ZeRO (runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE); no key sets it."""

_SMALLEST_SWAP_BYTES = 2**20
"""Smaller tensors stay in memory (runtime/swap_tensor/utils.py, MIN_AIO_BYTES)."""


def departures(config: Mapping[str, Any] | TrialSpec, world_size: int | None = None, num_params: int = 0) -> list[str]:
    """Sentences for one rank of `world_size` and a model of `num_params` parameters, all of them trained.

    `config` is a DeepSpeed configuration without `auto` values, or a trial, whose configuration is then built and
    whose ranks count where `world_size` is None.
    """
    if isinstance(config, TrialSpec):
        world_size = config.world_size if world_size is None else world_size
        config = build_ds_config(config)
    case = _Case(config, world_size or 1, num_params)
    by_stage = (_stage_0, _stage_1_and_2, _stage_1_and_2, _stage_3)
    return [*by_stage[case.stage](case), *_optimizer(case), *_offload(case), *_nvme(case)]


@dataclass(frozen=True)
class _Case:
    config: Mapping[str, Any]
    world_size: int
    num_params: int

    def zero(self, key: str) -> Any:
        return get(self.config, f"zero_optimization.{key}")

    @property
    def stage(self) -> int:
        return int(self.zero("stage"))

    @property
    def element(self) -> int:
        """Bytes of one parameter."""
        return 4 if precision_of(self.config) == Precision.FP32.value else 2

    @property
    def share(self) -> int:
        """Parameters of one partition."""
        return -(-self.num_params // self.world_size)

    @property
    def bucket_bytes(self) -> int:
        return int(self.zero("reduce_bucket_size")) * self.element

    @property
    def accumulates_in_fp32(self) -> bool:
        return self.element == 2 and get(self.config, "data_types.grad_accum_dtype") in {"fp32", "float32", "float"}

    @property
    def offload_optimizer(self) -> str:
        return device_of(self.config, "offload_optimizer")

    @property
    def offload_param(self) -> str:
        return device_of(self.config, "offload_param")

    @property
    def micro_steps(self) -> int:
        return int(get(self.config, "gradient_accumulation_steps") or 1)


def _stage_0(case: _Case) -> Iterator[str]:
    """runtime/engine.py, allreduce_bucket; runtime/fp16/unfused_optimizer.py and fused_optimizer.py, step."""
    flat = min(case.num_params, _STAGE_0_BUCKET) * case.element
    yield (
        f"stage 0 copies the gradients into a flat buffer to all-reduce them, up to {_STAGE_0_BUCKET:,} elements at "
        f"a time ({format_bytes(flat)} here), at the end of each accumulated backward"
    )
    if case.element == 4:
        return
    yield (
        "stage 0 in 16 bits runs an optimizer step on zero gradients while the engine is built: Adam's moments are "
        "there from initialisation on, their step count starts at 1 and weight decay has been applied once"
    )
    copies = 2 if optimizer_of(case.config) is Optimizer.FUSED_ADAMW else 1
    yield (
        f"stage 0 holds {'the gradients twice' if copies == 2 else 'the gradients'} in fp32 during the step, beside "
        f"the 16-bit ones ({format_bytes(4 * copies * case.num_params)})"
    )


def _stage_1_and_2(case: _Case) -> Iterator[str]:
    """runtime/zero/stage_1_and_2.py: setup_buckets, reduce_ipg_grads, copy_grads_in_partition, get_flat_partition,
    step, and the master weights and initial gradients of __init__; runtime/bf16_optimizer.py for the last case.
    """
    stage, share = case.stage, case.share * case.element
    if stage == 1 and case.accumulates_in_fp32 and case.offload_optimizer != Offload.CPU.value:
        yield (
            "stage 1 in bf16 with fp32 accumulation uses another optimizer (BF16_Optimizer): it keeps all gradients "
            f"in fp32 on every rank for the whole run ({format_bytes(4 * case.num_params)}) and has no reduce bucket, "
            "and building it resets the device's peak counters"
        )
        return
    yield from _master_copy(case)
    yield from _bucket_of_backward(case)
    if stage == 1:
        yield (
            f"stage 1 holds all gradients ({format_bytes(case.num_params * case.element)}) until the end of backward, "
            f"and then copies those of its own partition ({format_bytes(share)}) out of the bucket"
        )
    elif case.micro_steps > 1:
        yield (
            f"stage 2 holds the gradients of its partition twice while it accumulates ({format_bytes(2 * share)}): "
            "the sum so far and those of the running micro-step"
        )
    if case.offload_optimizer == Offload.NONE.value:
        fp32 = 4 * case.share if case.element == 2 else 0
        yield (
            f"at the step stage {stage} flattens the gradients of its partition into a copy ({format_bytes(share)})"
            + (f" and casts that to fp32 ({format_bytes(fp32)})" if fp32 else "")
        )
    yield (
        f"allgather_bucket_size ({case.zero('allgather_bucket_size'):,}) has no effect at stage {stage}: updated "
        "parameters are gathered in one call, straight into their flat buffer"
    )


def _master_copy(case: _Case) -> Iterator[str]:
    """stage_1_and_2.py, single_partition_of_fp32_groups; stage3.py, _create_fp32_partitions, whose test for sharing
    compares a torch.device with a string and never holds.
    """
    if case.element == 4:
        where = "in host memory" if case.offload_optimizer != Offload.NONE.value else "beside them"
        yield (
            f"stage {case.stage} keeps master weights although the parameters are fp32 already: a second copy of its "
            f"partition {where} ({format_bytes(4 * case.share)})"
        )


def _bucket_of_backward(case: _Case) -> Iterator[str]:
    elements = int(case.zero("reduce_bucket_size"))
    overlap = case.zero("overlap_comm") is True
    until = "its end"
    if case.stage == 1 and case.micro_steps > 1:
        until = "the end of the last accumulated one"
    yield (
        f"stage {case.stage} allocates {'two reduce buckets' if overlap else 'its reduce bucket'} of {elements:,} "
        f"elements ({format_bytes(case.bucket_bytes)}{' each' if overlap else ''}) at the first gradient of backward "
        f"and keeps {'them' if overlap else 'it'} to {until}, whatever the size of the model"
    )


def _stage_3(case: _Case) -> Iterator[str]:
    """runtime/zero/stage3.py, _setup_for_real_optimizer and _prepare_fp32_grad_for_sub_group; parameter_offload.py,
    mark_persistent_parameters; partitioned_param_coordinator.py, _fetch_sub_module_impl and __params_to_release;
    partition_parameters.py, AllGatherCoalescedHandle.wait.
    """
    elements = int(case.zero("reduce_bucket_size"))
    yield (
        f"stage 3 keeps its reduce bucket of {elements:,} elements ({format_bytes(case.bucket_bytes)}) for the whole run"
    )
    grad_element = 4 if case.accumulates_in_fp32 else case.element
    place = "in host memory" if case.offload_optimizer != Offload.NONE.value else "on the device"
    yield (
        "stage 3 keeps the buffer of its gradient partition from initialisation on, not only from backward to step "
        f"({format_bytes(grad_element * case.share)} {place})"
    )
    yield from _master_copy(case)
    yield from _gathering(case)
    if case.offload_optimizer == Offload.NONE.value:
        group = min(int(case.zero("sub_group_size")) or case.share, case.share)
        fp32 = 4 * group if grad_element == 2 else 0
        yield (
            "at the step stage 3 flattens the gradients of one sub-group after the other into a copy "
            f"({format_bytes(grad_element * group)})"
            + (f" and casts that to fp32 ({format_bytes(fp32)})" if fp32 else "")
        )


def _gathering(case: _Case) -> Iterator[str]:
    whole = case.num_params * case.element
    persist = int(case.zero("stage3_param_persistence_threshold"))
    if persist:
        yield (
            f"parameters of up to {persist:,} elements stay gathered on every rank from their first use on, "
            "beside their partitions"
        )
    reuse = int(case.zero("stage3_max_reuse_distance"))
    if reuse > case.num_params:
        yield (
            f"from the second forward on, gathered parameters are kept for backward, since stage3_max_reuse_distance "
            f"({reuse:,}) exceeds the model: all of it is gathered at the end of forward ({format_bytes(whole)})"
        )
    prefetch = min(int(case.zero("stage3_prefetch_bucket_size")), int(case.zero("stage3_max_live_parameters")))
    if prefetch:
        size = min(prefetch, case.num_params) * case.element
        yield f"from the second forward on, up to {prefetch:,} elements ({format_bytes(size)}) are gathered ahead of use"
    yield (
        "while several parameters are gathered at once they exist twice: in the buffer of the all-gather and in "
        "the tensors cut from it"
    )


def _optimizer(case: _Case) -> Iterator[str]:
    """initialize_optimizer_states in stage_1_and_2.py and stage3.py makes gradients and no step; the temporaries are
    those of torch/optim/adam.py (`denom`, or `exp_avg_sq_sqrt` of the for-each version).
    """
    kind = optimizer_of(case.config)
    if kind is Optimizer.SGD:
        return
    if case.stage > 0 or case.element == 4:
        states = case.share if case.stage > 0 else case.num_params
        yield f"Adam's moments ({format_bytes(8 * states)}) appear at the first step, so steady state begins at the second"
    if kind is Optimizer.ADAMW:
        states = case.share if case.stage > 0 else case.num_params
        yield (
            "torch.optim.AdamW makes temporaries in its step, each as large as the second moment it works on "
            f"(up to {format_bytes(4 * states)}); DeepSpeed's own Adam makes none"
        )


def _offload(case: _Case) -> Iterator[str]:
    """stage_1_and_2.py: temp_grad_buffer_for_gpu_offload, param_buffer_of_bit16_for_cpu_offload_groups and
    initialize_optimizer_states; stage3.py, initialize_optimizer_states and _create_param_groups_fp16_flat_cpu_memory.
    """
    if case.stage == 0:
        return
    if case.offload_optimizer != Offload.NONE.value and case.stage < 3:
        yield (
            "the host holds, beside master weights and moments, the gradients of the partition in fp32 "
            f"({format_bytes(4 * case.share)}) and a staging copy of its updated parameters "
            f"({format_bytes(case.element * case.share)}), both for the whole run"
        )
        yield "host and device each keep a buffer for the gradient of the largest parameter for the whole run"
    elif case.offload_optimizer == Offload.CPU.value:
        yield (
            "the host holds, beside master weights and moments, the gradients of the partition in fp32 "
            f"({format_bytes(4 * case.share)}) for the whole run"
        )
    if case.stage == 3 and case.offload_param == Offload.CPU.value:
        yield (
            f"the partitioned parameters lie in one page-locked host buffer ({format_bytes(case.element * case.share)}), "
            "pinned whatever pin_memory says; persistent parameters stay on the device"
        )


def _nvme(case: _Case) -> Iterator[str]:
    """runtime/swap_tensor/optimizer_utils.py, OptimizerSwapper; partitioned_param_swapper.py, _configure_aio; stage3.py,
    _create_param_groups_fp16_flat_cpu_memory.
    """
    if case.stage != 3:
        return
    if case.offload_optimizer == Offload.NVME.value:
        count = int(case.zero("offload_optimizer.buffer_count"))
        group = min(int(case.zero("sub_group_size")) or case.share, case.share)
        yield (
            f"swapping the optimizer's states takes {count} page-locked host buffers of one sub-group in fp32 "
            f"({format_bytes(4 * count * group)}) for the whole run"
        )
    if case.offload_param == Offload.NVME.value:
        count, size = int(case.zero("offload_param.buffer_count")), int(case.zero("offload_param.buffer_size"))
        yield (
            f"swapping the parameters takes {count} page-locked host buffers of {size:,} elements "
            f"({format_bytes(count * size * case.element)}) for the whole run"
        )
        kept = min(int(case.zero("offload_param.max_in_cpu")), case.share)
        if kept:
            yield f"up to {kept:,} elements of the partition stay in host memory (max_in_cpu) and never reach the NVMe"
    if Offload.NVME.value in {case.offload_optimizer, case.offload_param}:
        smallest = max(_SMALLEST_SWAP_BYTES, int(get(case.config, "aio.block_size") or default("aio.block_size")))
        yield f"tensors smaller than {format_bytes(smallest)} are not swapped and stay in memory"
