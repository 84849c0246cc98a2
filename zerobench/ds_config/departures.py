"""Where DeepSpeed's memory departs from the ZeRO paper's terms, in sentences with this configuration's figures.

The paper (arXiv 1910.02054, section 5) counts, in 16-bit training with Adam, 2 bytes a parameter for the weights, 2
for the gradients and 12 for the optimizer states, each divided by the ranks or not. What DeepSpeed keeps beside
them was read in the source of DeepSpeed 0.19.8, which each function names, and seen in a count of tensor storages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerobench.ds_config.build import build_ds_config
from zerobench.ds_config.case import Case, size
from zerobench.ds_config.offload_departures import host_departures, nvme_departures
from zerobench.spec.optimizers import OPTIMIZERS, Optimizer, OptimizerInfo
from zerobench.spec.trial import Offload, TrialSpec
from zerobench.units import format_bytes

_STAGE_0_BUCKET = 500_000_000
"""Elements all-reduced at a time without ZeRO (runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE); no key sets it."""


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
    by_stage = (_stage_0, _stage_1_and_2, _stage_1_and_2, _stage_3)
    return [*by_stage[case.stage](case), *_step(case), *host_departures(case), *nvme_departures(case)]


def _stage_0(case: Case) -> Iterator[str]:
    """runtime/engine.py, allreduce_bucket; runtime/fp16/unfused_optimizer.py and fused_optimizer.py, step and
    initialize_optimizer_states.
    """
    yield (
        f"stage 0 copies the gradients into a flat buffer to all-reduce them at the end of the last accumulated "
        f"backward, up to {_STAGE_0_BUCKET:,} elements at a time "
        f"({size(min(case.trained, _STAGE_0_BUCKET), case.element)} here)"
    )
    if case.element == 4:
        return
    info = case.optimizer
    if info.states:
        yield (
            "stage 0 in 16 bits runs an optimizer step on zero gradients while the engine is built, so that "
            f"{info.states_title} ({_states(info, case.trained)}) are there from initialisation on"
        )
    if info.is_flattened_in_16_bits:
        yield (
            "stage 0 holds the gradients twice in fp32 during the step, one by one and flattened, beside the 16-bit "
            f"ones ({size(8, case.trained)})"
        )
    else:
        yield (f"stage 0 holds the gradients in fp32 during the step, beside the 16-bit ones ({size(4, case.trained)})")


def _stage_1_and_2(case: Case) -> Iterator[str]:
    """runtime/zero/stage_1_and_2.py: reduce_ipg_grads, copy_grads_in_partition, independent_gradient_partition_epilogue
    and get_flat_partition; runtime/utils.py, all_gather_dp_groups.
    """
    if case.runs_bf16_optimizer:
        yield from _bf16_optimizer(case)
        return
    yield from _master_copy(case)
    yield from _bucket(case)
    partition = size(case.share, case.gradient_element)
    if case.stage == 1:
        yield (
            f"stage 1 holds all gradients ({size(case.trained, case.gradient_element)}) in backward, as in the "
            f"paper, and from its end to the step those of its own partition ({partition}) alone"
        )
    elif case.micro_steps > 1 and case.gradient_element == case.element:
        yield (
            "stage 2 holds the gradients of its partition twice while it accumulates, the sum so far and those of "
            f"the running backward ({partition} each)"
        )
    elif case.gradient_element != case.element:
        yield f"stage 2 sums the gradients of its partition in fp32 ({partition})"
    if case.offload_optimizer is Offload.NONE and case.gradient_element == case.element:
        yield (
            f"at the step stage {case.stage} flattens the gradients of its partition into a copy ({partition})"
            + _cast(case)
        )
    if case.world_size > 1:
        yield "the gradient of a tensor that lies across the edge of two partitions is kept whole on both their ranks"
    yield (
        f"allgather_bucket_size ({case.zero('allgather_bucket_size'):,}) has no effect at stage {case.stage}: updated "
        "parameters are gathered in one call, straight into their flat buffer"
    )


def _bf16_optimizer(case: Case) -> Iterator[str]:
    """runtime/bf16_optimizer.py, _setup_for_real_optimizer."""
    yield (
        "stage 1 in bf16 with fp32 accumulation keeps all gradients in fp32 on every rank for the whole run "
        f"({size(case.trained, 4)}), in DeepSpeed's BF16_Optimizer, and has no reduce bucket"
    )
    yield "BF16_Optimizer resets the device's peak counters while it is built: the peak of initialisation is too low"


def _master_copy(case: Case) -> Iterator[str]:
    """stage_1_and_2.py, single_partition_of_fp32_groups; stage3.py, _create_fp32_partitions, which would share the
    weights but compares a torch.device with a text, and so never does.
    """
    if case.element == 4:
        yield (
            f"stage {case.stage} keeps master weights although the parameters are fp32 already: a second copy of its "
            f"partition ({size(case.share, 4)})"
        )


def _bucket(case: Case) -> Iterator[str]:
    """stage_1_and_2.py, setup_buckets and _release_ipg_buffers."""
    if not case.zero("contiguous_gradients") and case.offload_optimizer is Offload.NONE:
        return
    until = "to the end of the last accumulated one" if case.stage == 1 and case.micro_steps > 1 else "to its end"
    count = "two reduce buckets" if case.zero("overlap_comm") else "a reduce bucket"
    yield (
        f"stage {case.stage} allocates {count} of {case.bucket_elements:,} elements ({size(case.bucket_bytes, 1)}) "
        f"at the first gradient of backward and keeps it {until}, whatever the size of the model"
    )


def _stage_3(case: Case) -> Iterator[str]:
    """runtime/zero/stage3.py, _setup_for_real_optimizer and _prepare_fp32_grad_for_sub_group."""
    if case.zero("contiguous_gradients"):
        yield (
            f"stage 3 keeps its reduce bucket of {case.bucket_elements:,} elements ({size(case.bucket_bytes, 1)}) "
            "for the whole run"
        )
    place = "on the device" if case.offload_optimizer is Offload.NONE else "in host memory"
    yield (
        "stage 3 keeps the gradients of its partition from initialisation on, not only from backward to step "
        f"({size(case.share, case.gradient_element)} {place})"
    )
    yield from _master_copy(case)
    yield from _second_copy(case)
    yield from _gathering(case)
    if case.offload_optimizer is Offload.NONE:
        copy = size(case.sub_group, case.gradient_element)
        yield (
            f"at the step stage 3 flattens the gradients of one sub-group after the other into a copy ({copy})"
            + _cast(case)
        )


def _second_copy(case: Case) -> Iterator[str]:
    """runtime/zero/partition_parameters.py, _partition_param_sec; stage3.py, invalidate_secondary_tensor."""
    if (ranks := int(case.zero("zero_hpz_partition_size"))) > 1:
        yield (
            f"hpZ keeps a second copy of the parameters, divided among {ranks} ranks "
            f"({size(-(-case.num_params // ranks), case.element)}), of each from its release to the update"
        )


def _cast(case: Case) -> str:
    elements = case.sub_group if case.stage == 3 else case.share
    return f" and casts that to fp32 ({size(elements, 4)})" if case.gradient_element == 2 else ""


def _gathering(case: Case) -> Iterator[str]:
    """runtime/zero/parameter_offload.py, mark_persistent_parameters; partitioned_param_coordinator.py, reset_step,
    _fetch_sub_module_impl and __params_to_release; partition_parameters.py, AllGatherCoalescedHandle.wait.
    """
    if persistent := int(case.zero("stage3_param_persistence_threshold")):
        yield (
            f"parameters of up to {persistent:,} elements stay gathered on every rank, beside their partitions, from "
            "their first use on"
        )
    yield from _linear_weights(case)
    reuse = int(case.zero("stage3_max_reuse_distance"))
    if reuse > case.num_params:
        yield (
            "from the second forward on all parameters are gathered at its end "
            f"({size(case.num_params, case.element)}): those used again within stage3_max_reuse_distance "
            f"({reuse:,} elements) are kept for backward"
        )
    ahead = min(int(case.zero("stage3_prefetch_bucket_size")), int(case.zero("stage3_max_live_parameters")))
    if ahead:
        nbytes = size(min(ahead, case.num_params), case.element)
        yield f"from the second forward on up to {ahead:,} elements ({nbytes}) are gathered ahead of their use"
    yield (
        "parameters that are gathered together exist twice for a moment, in the buffer of the all-gather and in the "
        "tensors cut from it"
    )


def _linear_weights(case: Case) -> Iterator[str]:
    """runtime/zero/linear.py."""
    if case.replaces_linear:
        yield (
            "weights of linear layers are gathered anew for backward (memory_efficient_linear), as DeepSpeed 0.19 does "
            "for every model; older releases do so for models built under zero.Init alone, and of others autograd "
            "holds every gathered weight of nn.Linear from forward to backward where activations are not checkpointed: "
            "memory_efficient_linear false shows what that takes"
        )
        return
    yield (
        "memory_efficient_linear is off: autograd holds every gathered weight of nn.Linear from forward to backward, "
        "with checkpointing those of one block at a time"
    )


def _step(case: Case) -> Iterator[str]:
    """initialize_optimizer_states of stage_1_and_2.py and stage3.py, which makes gradients and no step; their
    get_grad_norm_direct; torch/optim/adam.py (`denom`, or `exp_avg_sq_sqrt` of the for-each version).
    """
    if case.stage > 0:
        yield (
            "the norm of the gradients is taken in fp64, one gradient after the other: a temporary of 8 bytes for "
            "each element of the partition's largest"
        )
    info = case.optimizer
    if info.states and (case.stage > 0 or case.element == 4):
        yield (
            f"{info.states_title} ({_states(info, case.states)}) appear at the first step, so that "
            "the steady state begins at the second"
        )
    if info.temporaries_note is not None:
        largest = info.temporaries.nbytes([case.states], on_gpu=True)
        yield info.temporaries_note.format(largest=format_bytes(largest))


def _states(info: OptimizerInfo, elements: int) -> str:
    return format_bytes(sum(info.states_of([elements]).values()))
