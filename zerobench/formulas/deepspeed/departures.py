"""Where DeepSpeed's memory departs from the ZeRO paper's terms, in sentences with this configuration's figures.

The paper (arXiv 1910.02054, section 5) counts, in 16-bit training with Adam, 2 bytes a parameter for the weights, 2
for the gradients and 12 for the optimizer states, each divided by the ranks or not. What DeepSpeed keeps beside them
the formulas of this package say, whose terms these sentences speak of; it was seen in a count of tensor storages too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerobench.ds_config import build_ds_config
from zerobench.ds_config.case import Case
from zerobench.formulas.deepspeed import stage_1_and_2, stage_3, stage_3_offload
from zerobench.formulas.deepspeed.setting import ALLREDUCE_ELEMENTS, Setting, outline
from zerobench.formulas.deepspeed.stage_0 import copied, half_precision_casts
from zerobench.formulas.terms import Bytes
from zerobench.records import Category
from zerobench.spec.optimizers import OPTIMIZERS, Optimizer
from zerobench.spec.swap_rules import smallest_swapped_bytes
from zerobench.spec.trial import Offload, TrialSpec
from zerobench.units import format_bytes


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
        f"stage 0 copies the gradients into a flat buffer to all-reduce them at the end of the last accumulated "
        f"backward, up to {ALLREDUCE_ELEMENTS:,} elements at a time ({_size(copied(setting))} here)"
    )
    if setting.case.element == 4:
        return
    info = setting.optimizer_info
    if info.states:
        yield (
            "stage 0 in 16 bits runs an optimizer step on zero gradients while the engine is built, so that "
            f"{info.states_title} ({_size(setting.moments(setting.tensors))}) are there from initialisation on"
        )
    casts = _size(half_precision_casts(setting))
    if info.is_flattened_in_16_bits:
        yield (
            "stage 0 holds the gradients twice in fp32 during the step, one by one and flattened, beside the 16-bit "
            f"ones ({casts})"
        )
    else:
        yield f"stage 0 holds the gradients in fp32 during the step, beside the 16-bit ones ({casts})"


def _stage_1_and_2(setting: Setting, case: Case) -> Iterator[str]:
    """runtime/utils.py, all_gather_dp_groups, beside what the formulas name."""
    stage = case.stage
    if case.runs_bf16_optimizer:
        yield (
            "stage 1 in bf16 with fp32 accumulation keeps all gradients in fp32 on every rank for the whole run "
            f"({format_bytes(4 * case.trained)}), in DeepSpeed's BF16_Optimizer, and has no reduce bucket"
        )
        yield (
            "BF16_Optimizer resets the device's peak counters while it is built: the peak of initialisation is too low"
        )
        return
    yield from _master_copy(setting)
    if stage_1_and_2.bucket(setting):
        until = "to the end of the last accumulated one" if stage == 1 and case.micro_steps > 1 else "to its end"
        count = "two reduce buckets" if case.zero("overlap_comm") else "a reduce bucket"
        yield (
            f"stage {stage} allocates {count} of {case.bucket_elements:,} elements ({format_bytes(case.bucket_bytes)}) "
            f"at the first gradient of backward and keeps it {until}, whatever the size of the model"
        )
    is_compact = case.gradient_element != case.element
    partition = format_bytes(case.gradient_element * setting.flat_partition)
    if stage == 1:
        yield (
            f"stage 1 holds all gradients ({format_bytes(case.gradient_element * case.trained)}) in backward, as in "
            f"the paper, and from its end to the step those of its own partition ({partition}) alone"
        )
    elif case.micro_steps > 1 and not is_compact:
        yield (
            "stage 2 holds the gradients of its partition twice while it accumulates, the sum so far and those of "
            f"the running backward ({partition} each)"
        )
    elif is_compact:
        yield f"stage 2 sums the gradients of its partition in fp32 ({partition})"
    if not setting.offloads and not is_compact:
        yield f"at the step stage {stage} flattens the gradients of its partition into a copy ({partition})" + _cast(
            case, setting.flat_partition
        )
    if case.world_size > 1:
        yield "the gradient of a tensor that lies across the edge of two partitions is kept whole on both their ranks"
    yield (
        f"allgather_bucket_size ({case.zero('allgather_bucket_size'):,}) has no effect at stage {stage}: updated "
        "parameters are gathered in one call, straight into their flat buffer"
    )


def _cast(case: Case, elements: int) -> str:
    return f" and casts that to fp32 ({format_bytes(4 * elements)})" if case.gradient_element == 2 else ""


def _master_copy(setting: Setting) -> Iterator[str]:
    """stage_1_and_2.py, single_partition_of_fp32_groups; stage3.py, _create_fp32_partitions, which would share the
    weights but compares a torch.device with a text, and so never does.
    """
    if setting.case.element == 4:
        yield (
            f"stage {setting.case.stage} keeps master weights although the parameters are fp32 already: a second copy "
            f"of its partition ({_size(setting.master_and_moments([setting.partition], None))})"
        )


def _stage_3(setting: Setting, case: Case) -> Iterator[str]:
    """runtime/zero/parameter_offload.py, mark_persistent_parameters; partitioned_param_coordinator.py, reset_step,
    _fetch_sub_module_impl and __params_to_release; partition_parameters.py, AllGatherCoalescedHandle.wait.
    """
    if case.zero("contiguous_gradients"):
        yield (
            f"stage 3 keeps its reduce bucket of {case.bucket_elements:,} elements ({format_bytes(case.bucket_bytes)}) "
            "for the whole run"
        )
    place = "in host memory" if setting.offloads else "on the device"
    gradients = setting.share(Category.GRADIENTS, case.gradient_element, setting.sharded)
    yield (
        "stage 3 keeps the gradients of its partition from initialisation on, not only from backward to step "
        f"({_size(gradients)} {place})"
    )
    yield from _master_copy(setting)
    if (ranks := int(case.zero("zero_hpz_partition_size"))) > 1:
        yield (
            f"hpZ keeps a second copy of the parameters, divided among {ranks} ranks "
            f"({format_bytes(case.element * -(-case.num_params // ranks))}), of each from its release to the update"
        )
    if persistent := int(case.zero("stage3_param_persistence_threshold")):
        yield (
            f"parameters of up to {persistent:,} elements stay gathered on every rank, beside their partitions, from "
            "their first use on"
        )
    yield _LINEAR[case.replaces_linear]
    yield from _gathering(case)
    if not setting.offloads:
        copy = format_bytes(case.gradient_element * setting.sub_group)
        yield (
            f"at the step stage 3 flattens the gradients of one sub-group after the other into a copy ({copy})"
            + _cast(case, setting.sub_group)
        )


_LINEAR = {
    True: "weights of linear layers are gathered anew for backward (memory_efficient_linear), as DeepSpeed 0.19 does "
    "for every model; older releases do so for models built under zero.Init alone, and of others autograd "
    "holds every gathered weight of nn.Linear from forward to backward where activations are not checkpointed: "
    "memory_efficient_linear false shows what that takes",
    False: "memory_efficient_linear is off: autograd holds every gathered weight of nn.Linear from forward to "
    "backward, with checkpointing those of one block at a time",
}
"""By whether DeepSpeed's linear layers run (runtime/zero/linear.py)."""


def _gathering(case: Case) -> Iterator[str]:
    kept, limit = stage_3.live_limit(case)
    if kept >= case.num_params:
        yield (
            "from the second forward on all parameters are gathered at its end "
            f"({format_bytes(case.element * case.num_params)}) and kept for backward: {limit} elements hold them"
        )
    ahead = min(int(case.zero("stage3_prefetch_bucket_size")), int(case.zero("stage3_max_live_parameters")))
    if ahead:
        nbytes = format_bytes(case.element * min(ahead, case.num_params))
        yield f"from the second forward on up to {ahead:,} elements ({nbytes}) are gathered ahead of their use"
    yield (
        "parameters that are gathered together exist twice for a moment, in the buffer of the all-gather and in the "
        "tensors cut from it"
    )


def _step(setting: Setting) -> Iterator[str]:
    """initialize_optimizer_states of stage_1_and_2.py and stage3.py, which makes gradients and no step; their
    get_grad_norm_direct; torch/optim/adam.py (`denom`, or `exp_avg_sq_sqrt` of the for-each version).
    """
    stage, info = setting.case.stage, setting.optimizer_info
    if stage:
        yield (
            "the norm of the gradients is taken in fp64, one gradient after the other: a temporary of 8 bytes for "
            "each element of the partition's largest"
        )
    if info.states and (stage or setting.case.element == 4):
        yield (
            f"{info.states_title} ({_size(setting.moments([setting.partition]))}) appear at the first step, so that "
            "the steady state begins at the second"
        )
    if info.temporaries_note is not None:
        largest = info.temporaries.nbytes([setting.partition], on_gpu=True)
        yield info.temporaries_note.format(largest=format_bytes(largest))


def _host(setting: Setting) -> Iterator[str]:
    """What offloading keeps in host memory beside the states that the ZeRO papers move there (stage_1_and_2.host,
    stage_3_offload.host; stage3.py, _create_param_groups_fp16_flat_cpu_memory).
    """
    case = setting.case
    in_fp32 = format_bytes(4 * setting.partition)
    share = format_bytes(case.element * setting.partition)
    if setting.offloads and case.stage < 3:
        yield (
            "the host holds for the whole run, beside master weights and moments, the gradients of the partition in "
            f"fp32 ({in_fp32}) and a staging copy of its updated parameters ({share})"
        )
        yield "host and device each keep a buffer for the gradient of the largest parameter for the whole run"
    elif case.offload_optimizer is Offload.CPU:
        yield (
            "the host holds for the whole run, beside master weights and moments, the gradients of the partition in "
            f"fp32 too ({in_fp32})"
        )
    if case.offload_param is Offload.CPU:
        yield (
            f"the partition of the parameters lies in one host buffer ({share}), page-locked whatever pin_memory says"
        )


def _nvme(setting: Setting) -> Iterator[str]:
    case = setting.case
    if case.stage != 3 or Offload.NVME not in {case.offload_optimizer, case.offload_param}:
        return
    if case.offload_optimizer is Offload.NVME:
        count = int(case.zero("offload_optimizer.buffer_count"))
        yield (
            f"swapping the optimizer's states takes {count} page-locked host buffers of one sub-group in fp32 "
            f"({_size(stage_3_offload.optimizer_buffers(setting))}) for the whole run"
        )
    if case.offload_param is Offload.NVME:
        count, elements = int(case.zero("offload_param.buffer_count")), int(case.zero("offload_param.buffer_size"))
        yield (
            f"swapping the parameters takes {count} page-locked host buffers of {elements:,} elements "
            f"({format_bytes(case.element * count * elements)}) for the whole run"
        )
        if kept := stage_3_offload.kept_on_host(setting):
            yield f"up to {kept:,} elements of the partition stay in host memory (max_in_cpu) and never reach the NVMe"
    smallest = format_bytes(smallest_swapped_bytes(setting.case.config))
    yield f"tensors smaller than {smallest} are not swapped and stay in memory"
