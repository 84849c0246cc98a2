"""Stages 1 and 2: optimizer states partitioned, at stage 2 gradients too (runtime/zero/stage_1_and_2.py, 0.19.8).

Parameters are one flat buffer on every rank, padded to two elements a rank. Gradients are copied into a bucket, reduced
there, and those of the tensors that reach into the rank's own partition are copied out, whole. Stage 1 does all that
at the end of the last backward pass, stage 2 (and stage 1 with overlap_comm) within each.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from zerobench.common.vocabulary import Category, StepKind
from zerobench.estimate.memory.deepspeed.setting import (
    MODEL_TENSORS,
    NOT_HANDED_ON,
    TOO_LARGE,
    WHOLE,
    Instants,
    Setting,
)
from zerobench.estimate.memory.deepspeed.stage_0 import copied
from zerobench.estimate.memory.terms.terms import Bytes, Term, Terms, add, of_elements


def device(setting: Setting, step: StepKind) -> Instants:
    """The device's bytes, with the optimizer's states on the device or offloaded."""
    if setting.case.runs_bf16_optimizer:
        return _bf16_optimizer(setting, step)
    held = _held(setting, None if step is StepKind.FIRST else step)
    between = add(held, _between_micro_steps(setting))
    first = setting.first_gradient_whole
    if setting.case.stage == 1 and setting.case.gradient_element != setting.case.element:
        first = of_elements(  # use_grad_accum_attribute casts each gradient as it comes
            Category.GRADIENTS, setting.case.gradient_element, setting.first_gradient, "the head's gradient, cast"
        )
    stays = setting.case.stage == 1 and setting.case.micro_steps > 1  # from the first backward pass of the step
    return Instants(
        init=_init(setting),
        gathering=between,
        forward=between,
        first_gradient=add(between, first),
        bucketed=add({} if stays else bucket(setting), between, first),
        reduction=tuple(add(bucket(setting), held, instant) for instant in _reduction(setting)),
        filled=_filled(setting, add(bucket(setting), held)),
        backward_end=add(held, _backward_end(setting)),
        step=(_held(setting, step),) if setting.offloads else _step(setting, step),
    )


def host(setting: Setting, step: StepKind) -> Instants:
    """Host memory of offloading (__init__ and initialize_optimizer_states; nvme is treated as cpu)."""
    partition, element = setting.flat_partition, setting.case.element
    staged, source = "the updated partition on its way to the device", "stage_1_and_2.py, __init__"
    built = add(
        setting.master_and_moments([partition], None),
        setting.share(Category.GRADIENTS, 4, partition, "in fp32, for the update"),
        setting.share(Category.STAGING, element, partition, staged, source),
        of_elements(Category.STAGING, element, setting.largest_tensor, "the largest gradient", source),
    )
    updated = add(built, setting.moments([partition]))
    held = built if step is StepKind.FIRST else updated
    accumulated = _accumulated_on_host(setting)
    before = held if step is StepKind.FIRST else add(held, accumulated)
    after = add(held, accumulated)
    end = add(updated, accumulated)
    init = (flattening_host(setting), built)
    update = add(end, setting.update_temporaries([partition], on_host=True))
    return Instants(init, before, before, before, after, (after,), after, (update, end))


def _held(setting: Setting, step: StepKind | None) -> Terms:
    """Device memory for the whole run; `step` None is before the first step's end."""
    if setting.offloads:
        what, element = "a buffer for the largest gradient, on its way", setting.case.element
        source = "stage_1_and_2.py, temp_grad_buffer_for_gpu_offload"
        moved = of_elements(Category.REDUCE_BUFFERS, element, setting.largest_tensor, what, source)
        return add(_flat(setting), moved)
    return add(_flat(setting), setting.master_and_moments([setting.flat_partition], step))


def _flat(setting: Setting) -> Terms:
    """All parameters, flat."""
    ranks = setting.case.world_size
    padding = f"padding to a multiple of 2 x {ranks} ranks"
    return setting.share(Category.PARAMETERS, setting.case.element, setting.flat_partition * ranks, padding=padding)


def flattens_on_host(setting: Setting) -> bool:
    """Return whether the device has no room for the flat copy beside the model (__init__, flatten_on_accelerator)."""
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
    model = setting.share(Category.PARAMETERS, element, setting.num_params, MODEL_TENSORS)
    flat = _flat(setting)
    flattening = (model, flat) if flattens_on_host(setting) else (add(model, flat),)
    clones = element == 2 or setting.offloads
    clone = setting.share(Category.PARAMETERS, element, partition if clones else 0, "a clone on its way to fp32")
    built = _held(setting, None)
    if setting.offloads:  # a blocking copy to the host is cast there (aten/src/ATen/native/cuda/Copy.cu)
        return *flattening, add(flat, clone), built
    zeros = setting.share(Category.GRADIENTS, 4, partition, "zeros in fp32")
    return *flattening, add(built, clone), add(built, zeros), built


def bucket(setting: Setting) -> Terms:
    """setup_buckets: one bucket, two with overlap_comm; none without contiguous_gradients."""
    if not setting.case.zero("contiguous_gradients") and not setting.offloads:
        return Terms()
    return setting.bucket("stage_1_and_2.py, setup_buckets", is_double=bool(setting.case.zero("overlap_comm")))


def _is_compact(setting: Setting) -> bool:
    """Return whether the partition's gradients are summed in one fp32 buffer (_use_compact_grad_partition_buffer)."""
    return setting.case.gradient_element == 4 and setting.case.element == 2


def _gradient_element(setting: Setting) -> int:
    """Stage 1 with an fp32 accumulator casts each gradient as it comes (use_grad_accum_attribute)."""
    return setting.case.gradient_element if setting.case.stage == 1 else setting.case.element


def _own_gradients(setting: Setting, padding: int = 0) -> Terms:
    """Gradients copied out of the bucket (copy_grads_in_partition); nothing where they go to the host. `padding`: bytes
    of zeros where the partition is that.
    """
    if _is_compact(setting):
        return setting.share(Category.GRADIENTS, 4, setting.flat_partition, "of the partition, summed in fp32")
    if setting.offloads:
        return Terms()
    element, inside = setting.case.element, sum(inside for _, inside in setting.own_tensors)
    across = sum(tensor for tensor, _ in setting.own_tensors) - inside
    return Terms(
        Term(Category.GRADIENTS, element * inside, f"of the partition: {element} bytes x {inside:,} elements"),
        Term(Category.GRADIENTS, padding, "padding of the partition"),
        Term(Category.GRADIENTS, element * across, "tensors across the partition's edge, kept whole"),
    )


def _own_gradients_within(setting: Setting, passed: int) -> Terms:
    """Those of them that have been copied out when so many elements have been reduced; a compact buffer is made for the
    first of them (_get_compact_grad_partition_buffer).
    """
    start = max(setting.rank * setting.flat_partition, setting.num_params - passed)
    inside = max(0, min((setting.rank + 1) * setting.flat_partition, setting.num_params) - start)
    if _is_compact(setting) or setting.offloads:
        return _own_gradients(setting) if inside or setting.case.micro_steps > 1 else Terms()
    return of_elements(Category.GRADIENTS, setting.case.element, inside, "of the partition, so far")


def _between_micro_steps(setting: Setting) -> Bytes:
    """Memory that earlier backward passes of the same step leave: sums of gradients, and stage 1's bucket."""
    if setting.case.micro_steps == 1:
        return {}
    return _own_gradients(setting) if setting.case.stage == 2 else add(_whole(setting), bucket(setting))


def _whole(setting: Setting) -> Terms:
    """Stage 1's gradients."""
    return setting.share(Category.GRADIENTS, _gradient_element(setting), setting.num_params, WHOLE)


def _reduction(setting: Setting) -> tuple[Bytes, ...]:
    """Instants of reduce_ipg_grads, without what is held, and the bucket.

    The bucket's slices are flattened into a copy to be all-reduced (allreduce_bucket) where they go to several ranks.
    """
    partition, element = _own_gradients(setting), _gradient_element(setting)
    fills = setting.fills(setting.case.bucket_elements)
    norm = setting.norm(_largest_own(setting)) if setting.offloads else {}
    if setting.streams_gradients:
        before = add(_own_gradients_within(setting, sum(fills[:-1])), _sums(setting))
        tied = setting.tied_gradients(3)
        return (
            *([add(before, _too_large(setting, len(fills) - 1), tied)] if tied else []),
            add(before, _too_large(setting, len(fills)), _copied(setting, fills[-1])),
            add(partition, _sums(setting), _too_large(setting, len(fills)), norm),
        )
    passed = list(accumulate(fills))
    rests = [of_elements(Category.GRADIENTS, element, setting.num_params - there, NOT_HANDED_ON) for there in passed]
    own_end = min((setting.rank + 1) * setting.flat_partition, setting.num_params)
    fullest, own_last = fills.index(max(fills)), bisect_left(passed, own_end)
    whole = add(_whole(setting), setting.tied_gradients(2))
    copies = [
        add(
            rests[number],
            _too_large(setting, number + 1),
            _copied(setting, fills[number]),
            partition if passed[number] - fills[number] >= own_end else {},
        )
        for number in sorted({0, fullest})
    ]
    normed = bisect_left(passed, _largest_own_end(setting)) if norm else own_last
    return whole, *copies, add(rests[normed], _too_large(setting, normed + 1), partition, norm)


def _too_large(setting: Setting, fills: int) -> Terms:
    """Stage 1's gradients of tensors that have no room in the bucket, of so many fills: they stay where they were made
    (reduce_ipg_grads clears stage 2's alone).
    """
    limit = setting.case.bucket_elements if setting.case.stage == 1 else setting.num_params
    elements = sum(tensor for fill in setting.filled(limit)[:fills] for tensor in fill if tensor > limit)
    return of_elements(Category.GRADIENTS, _gradient_element(setting), elements, TOO_LARGE)


def _filled(setting: Setting, held: Bytes) -> dict[int, Bytes]:
    """Return `filled` of Instants."""
    fills = setting.fills(setting.case.bucket_elements)
    before = list(accumulate(fills, initial=0))
    waiting = add(held, _sums(setting), setting.tied_gradients(1))
    return {
        before[number + 1]: add(
            waiting, _own_gradients_within(setting, before[number]), _copied(setting, fills[number])
        )
        for number in setting.telling(fills)
        if setting.streams_gradients
    }


def _copied(setting: Setting, fill: int) -> Bytes:
    if setting.case.world_size == 1:
        return {}
    what, source = "copy of the bucket for the reduction", "stage_1_and_2.py, allreduce_bucket"
    return setting.copied(_gradient_element(setting), setting.case.bucket_elements, what, source, fill=fill)


def _sums(setting: Setting) -> Bytes:
    is_copied = setting.case.micro_steps > 1 and not _is_compact(setting)
    return _summed(_own_gradients(setting)) if is_copied else {}


def _summed(partition: Terms) -> Terms:
    return Terms(*(term._replace(words=f"summed over micro steps, {term.words}") for term in partition.terms))


def _largest_own(setting: Setting) -> int:
    return max((inside for _, inside in setting.own_tensors), default=0)


def _largest_own_end(setting: Setting) -> int:
    """End of the partition's largest tensor among the flat parameters."""
    start = setting.rank * setting.flat_partition
    ends = [end for end in accumulate(setting.tensors) if end > start]
    own = [inside for _, inside in setting.own_tensors]
    return ends[own.index(max(own))] if own else start


def _backward_end(setting: Setting) -> Terms:
    """independent_gradient_partition_epilogue: views of the own gradients, zeros where the partition is padding."""
    padding = setting.flat_partition - sum(inside for _, inside in setting.own_tensors)
    return _own_gradients(setting, setting.case.element * padding)


def _step(setting: Setting, step: StepKind) -> tuple[Bytes, ...]:
    """step(): the norm in fp64, tensor by tensor; the partition's gradients flattened and cast to fp32; the update."""
    partition, element = setting.flat_partition, setting.case.element
    before = add(_held(setting, None if step is StepKind.FIRST else step), _backward_end(setting))
    after = _held(setting, step)
    flat = setting.share(Category.GRADIENTS, element, partition, "flattened into one copy", "get_flat_partition")
    cast = setting.share(Category.GRADIENTS, 4, partition, "cast to fp32 for the update", "stage_1_and_2.py, step")
    if _is_compact(setting):
        copies, updated = Terms(), _own_gradients(setting)
    else:
        copies, updated = (add(flat, cast), cast) if element == 2 else (flat, flat)
    return (
        add(before, setting.norm(_largest_own(setting))),
        add(before, copies),
        add(after, updated, setting.update_temporaries([partition])),
        after,
    )


def _accumulated_on_host(setting: Setting) -> Bytes:
    """buffer_to_accumulate_to_in_cpu: with accumulation, the own tensors' gradients whole, for the rest of the run."""
    if setting.case.micro_steps == 1 or _is_compact(setting) or setting.case.stage == 1:
        return {}
    elements = sum(tensor for tensor, _ in setting.own_tensors)
    return of_elements(Category.GRADIENTS, setting.case.element, elements, "as they were reduced")


def _bf16_optimizer(setting: Setting, step: StepKind) -> Instants:
    """Stage 1 in bf16 that accumulates in fp32 keeps all gradients in fp32 for good, and those in bf16 until they have
    been updated with (runtime/bf16_optimizer.py, clear_lp_grads).
    """
    elements = setting.flat_partition * setting.case.world_size
    what = "kept in fp32 for the whole run (BF16_Optimizer)"
    whole = setting.share(Category.GRADIENTS, 4, elements, what, "bf16_optimizer.py")
    built = add(_held(setting, None), whole)
    updated = add(_held(setting, StepKind.STEADY), whole)
    held = built if step is StepKind.FIRST else updated
    first = add(held, setting.first_gradient_whole)
    in_bf16 = setting.share(Category.GRADIENTS, setting.case.element, setting.num_params, WHOLE)
    end, reduced = add(held, in_bf16), copied(setting)
    update = add(updated, in_bf16, setting.update_temporaries([setting.flat_partition]))
    model = setting.share(Category.PARAMETERS, setting.case.element, setting.num_params, MODEL_TENSORS)
    init = (add(_flat(setting), model), built)
    return Instants(init, held, held, first, first, (add(end, reduced),), end, (update, updated))
