"""Stages 1 and 2: optimizer states partitioned, at stage 2 gradients too (runtime/zero/stage_1_and_2.py, 0.19.8).

Parameters are one flat buffer on every rank, padded to two elements a rank. Gradients are copied into a bucket, reduced
there, and those of the tensors that reach into the rank's own partition are copied out, whole. Stage 1 does all that
at the end of the last backward pass, stage 2 (and stage 1 with overlap_comm) within each.
"""

from __future__ import annotations

from zerobench.formulas.deepspeed.setting import Bytes, Moments, Setting, add
from zerobench.records import Category, StepKind

_NORM_BYTES = 8
"""get_norm_dtype() is fp64 (runtime/utils.py)."""


def device(setting: Setting, step: StepKind) -> Moments:
    """The device's bytes, with the optimizer's states on the device or offloaded."""
    if setting.case.runs_bf16_optimizer:
        return _bf16_optimizer(setting, step)
    held = _held(setting, None if step is StepKind.FIRST else step)
    between = add(held, _between_micro_steps(setting))
    bucket = {Category.REDUCE_BUFFERS: _bucket_bytes(setting)}
    first = {Category.GRADIENTS: _gradient_element(setting) * setting.first_gradient}
    end = add(held, _backward_end(setting))
    return Moments(
        init=_init(setting),
        gathering=between,
        forward=between,
        first_gradient=add(between, first),
        bucketed=add(_with_bucket(setting, between, bucket), first),
        reduction=tuple(add(held, one) for one in _reduction(setting)),
        backward_end=end,
        step=(_held(setting, step),) if setting.offloads else _step(setting, step),
    )


def host(setting: Setting, step: StepKind) -> Moments:
    """What offloading keeps in host memory (__init__ and initialize_optimizer_states; nvme is treated as cpu).

    Master weights, fp32 gradients, a staging copy of the updated 16-bit partition, a buffer for the largest tensor's
    gradient, and from the first step on the moments.
    """
    partition, element = setting.flat_partition, setting.case.element
    built = {
        Category.MASTER_WEIGHTS: 4 * partition,
        Category.GRADIENTS: 4 * partition,
        Category.STAGING: element * (partition + setting.largest_tensor),
    }
    updated = add(built, setting.moments([partition]))
    held = built if step is StepKind.FIRST else updated
    accumulated = {Category.GRADIENTS: _accumulated_on_host(setting)}
    before = held if step is StepKind.FIRST else add(held, accumulated)
    after = add(held, accumulated)
    update = {Category.TEMPORARIES: setting.update_temporaries([partition], on_host=True)}
    end = add(updated, accumulated)
    init = (flattening_host(setting), built)
    return Moments(init, before, before, before, after, (after,), after, (add(end, update), end))


def _held(setting: Setting, step: StepKind | None) -> Bytes:
    """What lies on the device for the whole run; `step` None is before the first step's end."""
    parameters = {Category.PARAMETERS: setting.case.element * setting.flat_partition * setting.case.world_size}
    if setting.offloads:  # temp_grad_buffer_for_gpu_offload
        return add(parameters, {Category.REDUCE_BUFFERS: setting.case.element * setting.largest_tensor})
    return add(parameters, setting.master_and_moments([setting.flat_partition], step))


def flattens_on_host(setting: Setting) -> bool:
    """Whether the device has no room for the flat copy beside the model (__init__, flatten_on_accelerator)."""
    model, flat = _flattened(setting)
    return setting.capacity_bytes is not None and setting.capacity_bytes - model < flat


def flattening_host(setting: Setting) -> Bytes:
    """The model and its flat copy, where they are made on the host: on each rank, before anything else is there."""
    return {Category.TEMPORARIES: sum(_flattened(setting)) if flattens_on_host(setting) else 0}


def _flattened(setting: Setting) -> tuple[int, int]:
    """Bytes of the model's tensors, and of their flat copy."""
    element = setting.case.element
    return element * setting.num_params, element * setting.flat_partition * setting.case.world_size


def _init(setting: Setting) -> tuple[Bytes, ...]:
    """The model and its flat copy, beside each other or, flattened on the host, after each other; a clone of the
    partition on its way to fp32; zero gradients of the partition.
    """
    partition, element = setting.flat_partition, setting.case.element
    model, flat = ({Category.PARAMETERS: nbytes} for nbytes in _flattened(setting))
    flattening = (model, flat) if flattens_on_host(setting) else (add(model, flat),)
    clone = {Category.PARAMETERS: element * partition if element == 2 or setting.offloads else 0}
    built = _held(setting, None)
    if setting.offloads:  # a blocking copy to the host is cast there (aten/src/ATen/native/cuda/Copy.cu)
        return *flattening, add(flat, clone), built
    return *flattening, add(built, clone), add(built, {Category.GRADIENTS: 4 * partition}), built


def _bucket_bytes(setting: Setting) -> int:
    """setup_buckets: one bucket, two with overlap_comm; none without contiguous_gradients."""
    if not setting.case.zero("contiguous_gradients") and not setting.offloads:
        return 0
    return setting.case.bucket_bytes * (2 if setting.case.zero("overlap_comm") else 1)


def _streams(setting: Setting) -> bool:
    """Whether gradients are reduced within backward and not at its end (process_gradients)."""
    return setting.case.stage == 2 or bool(setting.case.zero("overlap_comm"))


def _is_compact(setting: Setting) -> bool:
    """Whether the partition's gradients are summed in one fp32 buffer (_use_compact_grad_partition_buffer)."""
    return setting.case.gradient_element == 4 and setting.case.element == 2


def _gradient_element(setting: Setting) -> int:
    """Stage 1 with an fp32 accumulator casts each gradient as it comes (use_grad_accum_attribute)."""
    return setting.case.gradient_element if setting.case.stage == 1 else setting.case.element


def _own_gradients(setting: Setting) -> int:
    """Bytes of gradients copied out of the bucket (copy_grads_in_partition); nothing where they go to the host."""
    if _is_compact(setting):
        return 4 * setting.flat_partition
    return 0 if setting.offloads else setting.case.element * sum(tensor for tensor, _ in setting.own_tensors)


def _between_micro_steps(setting: Setting) -> Bytes:
    """What earlier backward passes of the same step leave: sums of gradients, and stage 1's bucket."""
    if setting.case.micro_steps == 1:
        return {}
    if setting.case.stage == 2:
        return {Category.GRADIENTS: _own_gradients(setting)}
    whole = {Category.GRADIENTS: _gradient_element(setting) * setting.num_params}
    return add(whole, {Category.REDUCE_BUFFERS: _bucket_bytes(setting)})


def _with_bucket(setting: Setting, between: Bytes, bucket: Bytes) -> Bytes:
    """Stage 1's bucket has stayed from the first backward pass of the step."""
    return between if setting.case.stage == 1 and setting.case.micro_steps > 1 else add(between, bucket)


def _reduction(setting: Setting) -> tuple[Bytes, ...]:
    """Instants of reduce_ipg_grads, without what is held.

    The bucket's slices are flattened into a copy to be all-reduced (allreduce_bucket) where they go to several ranks.
    """
    bucket = {Category.REDUCE_BUFFERS: _bucket_bytes(setting)}
    fill = setting.bucket_fill(setting.case.bucket_elements)
    copies = setting.case.world_size > 1
    flat = {Category.REDUCE_BUFFERS: _gradient_element(setting) * fill if copies else 0}
    own = {Category.GRADIENTS: _own_gradients(setting)}
    norm = {Category.TEMPORARIES: _NORM_BYTES * _largest_own(setting) if setting.offloads else 0}
    if _streams(setting):
        sums = own if setting.case.micro_steps > 1 and not _is_compact(setting) else {}
        return add(bucket, flat, own, sums), add(bucket, own, sums, norm)
    element = _gradient_element(setting)
    whole = {Category.GRADIENTS: element * setting.num_params}
    rest = {Category.GRADIENTS: element * (setting.num_params - fill)}
    return add(bucket, whole), add(bucket, rest, flat, own), add(bucket, rest, own, norm)


def _largest_own(setting: Setting) -> int:
    return max((inside for _, inside in setting.own_tensors), default=0)


def _backward_end(setting: Setting) -> Bytes:
    """independent_gradient_partition_epilogue: views of the own gradients, zeros where the partition is padding."""
    if setting.offloads and not _is_compact(setting):
        return {}
    own = _own_gradients(setting)
    if _is_compact(setting):
        return {Category.GRADIENTS: own}
    padding = setting.flat_partition - sum(inside for _, inside in setting.own_tensors)
    return {Category.GRADIENTS: own + setting.case.element * padding}


def _step(setting: Setting, step: StepKind) -> tuple[Bytes, ...]:
    """step(): the norm in fp64, tensor by tensor; the partition's gradients flattened and cast to fp32; the update."""
    partition, element = setting.flat_partition, setting.case.element
    before = _held(setting, None if step is StepKind.FIRST else step)
    after = _held(setting, step)
    gradients = _backward_end(setting)
    flat = 0 if _is_compact(setting) else element * partition
    cast = 4 * partition if element == 2 and not _is_compact(setting) else 0
    temporaries = {Category.TEMPORARIES: setting.update_temporaries([partition])}
    return (
        add(before, gradients, {Category.TEMPORARIES: _NORM_BYTES * _largest_own(setting)}),
        add(before, gradients, {Category.GRADIENTS: flat + cast}),
        add(after, {Category.GRADIENTS: 4 * partition}, temporaries),
        after,
    )


def _accumulated_on_host(setting: Setting) -> int:
    """buffer_to_accumulate_to_in_cpu: with accumulation, the own tensors' gradients whole, for the rest of the run."""
    if setting.case.micro_steps == 1 or _is_compact(setting) or setting.case.stage == 1:
        return 0
    return setting.case.element * sum(tensor for tensor, _ in setting.own_tensors)


def _bf16_optimizer(setting: Setting, step: StepKind) -> Moments:
    """Stage 1 in bf16 that accumulates in fp32 keeps all gradients in fp32 for good (runtime/bf16_optimizer.py)."""
    elements = setting.flat_partition * setting.case.world_size
    whole = {Category.GRADIENTS: 4 * elements}
    built = add(_held(setting, None), whole)
    updated = add(_held(setting, StepKind.STEADY), whole)
    held = built if step is StepKind.FIRST else updated
    first = add(held, {Category.GRADIENTS: setting.case.element * setting.first_gradient})
    update = {Category.TEMPORARIES: setting.update_temporaries([setting.flat_partition])}
    flattening = {Category.PARAMETERS: setting.case.element * (elements + setting.num_params)}
    return Moments((flattening, built), held, held, first, first, (held,), held, (add(updated, update), updated))
