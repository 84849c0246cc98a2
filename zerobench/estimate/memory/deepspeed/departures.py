"""Departures of DeepSpeed's memory from the ZeRO paper's terms, in sentences with this configuration's figures.

The paper (arXiv 1910.02054, section 5) counts, in 16-bit training with Adam, 2 bytes a parameter for the weights, 2
for the gradients and 12 for the optimizer states, each divided by the ranks or not. What DeepSpeed keeps beside them
the formulas of this package say, whose terms these sentences speak of; it was seen in a count of tensor storages too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category
from zerobench.config.deepspeed import build_ds_config
from zerobench.config.deepspeed.case import Case
from zerobench.config.deepspeed.reading import smallest_swapped_bytes
from zerobench.config.trial.optimizers import OPTIMIZERS, Optimizer
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.estimate.memory.deepspeed import stage_1_and_2, stage_3, stage_3_offload
from zerobench.estimate.memory.deepspeed.setting import ALLREDUCE_ELEMENTS, Setting, outline
from zerobench.estimate.memory.deepspeed.stage_0 import copied, half_precision_casts
from zerobench.estimate.memory.terms.terms import Bytes


def departures(
    config: Mapping[str, Any] | TrialSpec,
    world_size: int | None = None,
    num_params: int = 0,
    optimizer: Optimizer | None = None,
    num_trained: int | None = None,
) -> list[str]:
    """Sentences for one rank of `world_size` and a model of `num_params` parameters, of which `num_trained` are
    trained; None: all.

    `config` is a DeepSpeed configuration without `auto` values, or a trial, whose configuration is then built and
    whose ranks count where `world_size` is None. `optimizer` says what an engine was handed of which its configuration
    knows nothing.
    """
    if isinstance(config, TrialSpec):
        world_size = config.world_size if world_size is None else world_size
        optimizer, config = config.optimizer, build_ds_config(config)
    is_handed = optimizer is not None and OPTIMIZERS[optimizer].deepspeed is None
    case = Case(config, world_size or 1, num_params, handed=optimizer if is_handed else None, num_trained=num_trained)
    setting = outline(case, case.optimizer.name)
    by_stage = (_stage_0, _stage_1_and_2, _stage_1_and_2, _stage_3)
    return [*by_stage[case.stage](setting, case), *_step(setting), *_host(setting), *_nvme(setting)]


def _size(held: Bytes) -> str:
    return format_bytes(sum(held.values()))


def _stage_0(setting: Setting, _: Case) -> Iterator[str]:
    yield (
        f"flat copy of the gradients: {_size(copied(setting))} at the end of the last accumulated backward, for the "
        f"all-reduce (up to {ALLREDUCE_ELEMENTS:,} elements at a time)"
    )
    if setting.case.element == 4:
        return
    info = setting.optimizer_info
    if info.states:
        yield (
            f"{info.states_title} from initialization on: {_size(setting.moments(setting.tensors))} (stage 0 in 16 "
            "bits steps once on zero gradients)"
        )
    casts = _size(half_precision_casts(setting))
    if info.is_flattened_in_16_bits:
        yield f"fp32 gradients during the step: {casts}, beside the 16-bit ones, and twice: per tensor and flattened"
    else:
        yield f"fp32 gradients during the step: {casts}, beside the 16-bit ones"


def _stage_1_and_2(setting: Setting, case: Case) -> Iterator[str]:
    """runtime/utils.py, all_gather_dp_groups, beside what the formulas name."""
    stage = case.stage
    if case.runs_bf16_optimizer:
        yield (
            f"all gradients in fp32 on every rank for the whole run: {format_bytes(4 * case.trained)} (stage 1 in bf16 "
            "with fp32 accumulation: BF16_Optimizer, which has no reduce bucket)"
        )
        yield "initialization peak too low: BF16_Optimizer resets the device's peak counters"
        return
    yield from _master_copy(setting)
    if stage_1_and_2.bucket(setting):
        until = "the last accumulated one's" if stage == 1 and case.micro_steps > 1 else "its"
        count = "two reduce buckets" if case.zero("overlap_comm") else "reduce bucket"
        yield (
            f"{count}: {format_bytes(case.bucket_bytes)} ({case.bucket_elements:,} elements, whatever the model's "
            f"size), from the first gradient of backward to {until} end"
        )
    is_compact = case.gradient_element != case.element
    partition = format_bytes(case.gradient_element * setting.flat_partition)
    if stage == 1:
        yield (
            f"gradients: all in backward ({format_bytes(case.gradient_element * case.trained)}), as in the paper; from "
            f"its end to the step only the rank's own partition ({partition})"
        )
    elif case.micro_steps > 1 and not is_compact:
        yield (
            "gradients of the partition twice while they accumulate: the sum so far and the running backward's "
            f"({partition} each)"
        )
    elif is_compact:
        yield f"gradients of the partition are summed in fp32: {partition}"
    if not setting.offloads and not is_compact:
        yield f"flat copy of the partition's gradients at the step: {partition}" + _cast(case, setting.flat_partition)
    if case.world_size > 1:
        yield "tensors across partition boundaries: whole gradient on both ranks"
    yield (
        f"allgather_bucket_size ({case.zero('allgather_bucket_size'):,}) has no effect at stage {stage}: one call "
        "gathers all updated parameters into their flat buffer"
    )


def _cast(case: Case, elements: int) -> str:
    return f", and its cast to fp32: {format_bytes(4 * elements)}" if case.gradient_element == 2 else ""


def _master_copy(setting: Setting) -> Iterator[str]:
    """stage_1_and_2.py, single_partition_of_fp32_groups; stage3.py, _create_fp32_partitions, which would share the
    weights but compares a torch.device with a text, and so never does.
    """
    if setting.case.element == 4:
        yield (
            f"master weights though parameters are fp32 already: a second copy of the partition, "
            f"{_size(setting.master_and_moments([setting.partition], None))}"
        )


def _stage_3(setting: Setting, case: Case) -> Iterator[str]:
    """runtime/zero/parameter_offload.py, mark_persistent_parameters; partitioned_param_coordinator.py, reset_step,
    _fetch_sub_module_impl and __params_to_release; partition_parameters.py, AllGatherCoalescedHandle.wait.
    """
    if case.zero("contiguous_gradients"):
        yield (
            f"reduce bucket: {format_bytes(case.bucket_bytes)} for the whole run ({case.bucket_elements:,} elements, "
            "whatever the model's size)"
        )
    place = "in host memory" if setting.offloads else "on the device"
    gradients = setting.share(Category.GRADIENTS, case.gradient_element, setting.sharded)
    yield f"gradients of the partition: {_size(gradients)} {place} for the whole run, not only from backward to step"
    yield from _master_copy(setting)
    if (ranks := int(case.zero("zero_hpz_partition_size"))) > 1:
        yield (
            f"hpZ's second copy of the parameters: {format_bytes(case.element * -(-case.num_params // ranks))} "
            f"(divided among {ranks} ranks), from each one's release to the update"
        )
    if persistent := int(case.zero("stage3_param_persistence_threshold")):
        yield f"parameters of up to {persistent:,} elements stay gathered on every rank after their first use"
    yield _LINEAR[case.replaces_linear]
    yield from _gathering(case)
    if not setting.offloads:
        copy = format_bytes(case.gradient_element * setting.sub_group)
        yield f"flat copy of each sub-group's gradients in turn at the step: {copy}" + _cast(case, setting.sub_group)


_LINEAR = {
    True: "linear layers' weights are gathered again for backward (memory_efficient_linear). Before DeepSpeed 0.19 "
    "only models built under zero.Init did so; without checkpointing, others held every gathered weight from forward "
    "to backward, as memory_efficient_linear false still does",
    False: "every gathered weight of nn.Linear is held from forward to backward, with checkpointing one block's at a "
    "time (memory_efficient_linear false)",
}
"""By whether DeepSpeed's linear layers run (runtime/zero/linear.py)."""


def _gathering(case: Case) -> Iterator[str]:
    kept, limit = stage_3.live_limit(case)
    if kept >= case.num_params:
        yield (
            f"all parameters stay gathered from forward to backward: {format_bytes(case.element * case.num_params)}, "
            f"starting with the second forward ({limit})"
        )
    ahead = min(int(case.zero("stage3_prefetch_bucket_size")), int(case.zero("stage3_max_live_parameters")))
    if ahead:
        nbytes = format_bytes(case.element * min(ahead, case.num_params))
        yield f"prefetch: up to {nbytes} gathered ahead of use ({ahead:,} elements), starting with the second forward"
    yield (
        "parameters gathered together briefly exist twice: in the all-gather's buffer and in the tensors cut from it"
    )


def _step(setting: Setting) -> Iterator[str]:
    """initialize_optimizer_states of stage_1_and_2.py and stage3.py, which makes gradients and no step; their
    get_grad_norm_direct; torch/optim/adam.py (`denom`, or `exp_avg_sq_sqrt` of the for-each version).
    """
    stage, info = setting.case.stage, setting.optimizer_info
    if stage:
        yield (
            "gradient norm in fp64, one gradient at a time: a temporary of 8 bytes per element of the largest "
            "in the partition"
        )
    if info.states and (stage or setting.case.element == 4):
        yield (
            f"{info.states_title} appear at the first step: {_size(setting.moments([setting.partition]))}; steady "
            "state begins at the second"
        )
    if info.temporaries_note is not None:
        largest = info.temporaries.nbytes([setting.partition], on_gpu=True)
        yield info.temporaries_note.format(largest=format_bytes(largest))


def _host(setting: Setting) -> Iterator[str]:
    """Host memory of offloading beside the states that the ZeRO papers move there (stage_1_and_2.host,
    stage_3_offload.host; stage3.py, _create_param_groups_fp16_flat_cpu_memory).
    """
    case = setting.case
    in_fp32 = format_bytes(4 * setting.partition)
    share = format_bytes(case.element * setting.partition)
    if setting.offloads and case.stage < 3:
        yield (
            "host memory beside master weights and moments, for the whole run: the partition's gradients in fp32 "
            f"({in_fp32}) and a staging copy of its updated parameters ({share})"
        )
        yield "host and device each keep a buffer for the largest parameter's gradient for the whole run"
    elif case.offload_optimizer is Offload.CPU:
        yield (
            "host memory beside master weights and moments, for the whole run: the partition's gradients in fp32 "
            f"({in_fp32})"
        )
    if case.offload_param is Offload.CPU:
        yield f"parameters of the partition: one host buffer of {share}, page-locked whatever pin_memory says"


def _nvme(setting: Setting) -> Iterator[str]:
    case = setting.case
    if case.stage != 3 or Offload.NVME not in {case.offload_optimizer, case.offload_param}:
        return
    if case.offload_optimizer is Offload.NVME:
        count = int(case.zero("offload_optimizer.buffer_count"))
        yield (
            f"optimizer swap buffers: {_size(stage_3_offload.optimizer_buffers(setting))} of page-locked host memory "
            f"for the whole run ({count} of one sub-group in fp32)"
        )
    if case.offload_param is Offload.NVME:
        count, elements = int(case.zero("offload_param.buffer_count")), int(case.zero("offload_param.buffer_size"))
        yield (
            f"parameter swap buffers: {format_bytes(case.element * count * elements)} of page-locked host memory for "
            f"the whole run ({count} of {elements:,} elements)"
        )
        if kept := stage_3_offload.kept_on_host(setting):
            yield f"up to {kept:,} elements of the partition stay in host memory (max_in_cpu), never on NVMe"
    smallest = format_bytes(smallest_swapped_bytes(setting.case.config))
    yield f"tensors smaller than {smallest} stay in memory: DeepSpeed does not swap them"
