"""Stage 3: every model state partitioned tensor by tensor (runtime/zero/stage3.py and parameter_offload.py, 0.19.8).

Each tensor is padded to the number of ranks. The reduce bucket and a buffer for the partition's gradients stand from
initialisation on. Parameters are gathered for use: in the first pass each module's alone, afterwards ahead of their
use, a prefetch bucket at every module, until stage3_max_live_parameters are there. How far that gets is an upper bound
here; the simulated world runs DeepSpeed's own coordinator.

hpZ's second copy (zerobench.formulas.zeropp) is there from zero.Init on, is dropped after each update, and is made
again of each tensor when it is released: in forward, or in backward where it stays gathered until then.
"""

from __future__ import annotations

from zerobench.formulas.deepspeed.setting import Bytes, Moments, Setting, add
from zerobench.formulas.deepspeed.swapping import is_swappable, swaps_optimizer
from zerobench.formulas.zeropp import second_copy_elements
from zerobench.records import Category, StepKind
from zerobench.spec.trial import Offload

_NORM_BYTES = 8
"""get_norm_dtype() is fp64 (runtime/utils.py)."""
_NORM_ELEMENTS = 250_000_000
"""Elements that an offloaded gradient's norm is taken over at a time (_constant_buffered_norm2)."""


def device(setting: Setting, step: StepKind) -> Moments:
    """The device's bytes; what is offloaded is not among them."""
    traced = step is StepKind.STEADY or setting.case.micro_steps > 1
    live = live_elements(setting) if traced else 0
    alone = _held(setting, None if step is StepKind.FIRST else step)
    copied = _released_copy(setting, step)
    held = add(alone, copied if step is StepKind.FIRST else _released_copy(setting, step, live))
    gradient = {Category.GRADIENTS: setting.case.element * setting.first_gradient}
    return Moments(
        init=_init(setting),
        gathering=add(held, _gathered(setting, live + _cut_elements(setting) if traced else setting.largest_tensor)),
        forward=add(held, _gathered(setting, live)),
        first_gradient=add(held, _gathered(setting, max(live, setting.first_gradient)), gradient),
        bucketed=add(held, _gathered(setting, max(live - setting.first_gradient, 0)), gradient, _first_norm(setting)),
        reduction=_reduction(setting, add(alone, copied), live),
        backward_end=_backward_end(setting, add(alone, copied), traced=traced),
        step=_step(setting, step, _released_copy(setting, None)),
    )


def _released_copy(setting: Setting, step: StepKind | None, kept: int = 0) -> Bytes:
    """The copy of hpZ of all tensors that have been released, when so many elements stay gathered; nothing without hpZ.

    Tensors that stay gathered, being small, have one until the first update, and then within updates alone, which begin
    by releasing everything (stage3.py, step).
    """
    size = int(setting.case.zero("zero_hpz_partition_size"))
    if size <= 1:
        return {}
    world = setting.case.world_size
    whole = second_copy_elements(setting.tensors, world, size)
    if step is StepKind.STEADY:
        small = second_copy_elements(persistent_tensors(setting), world, size)
        gone = -(-kept // size) if setting.case.micro_steps == 1 else 0
        whole -= max(small, min(gone, whole))
    return {Category.PARAMETERS: setting.case.element * whole}


def persistent_elements(setting: Setting) -> int:
    """Elements that stay gathered on every rank."""
    return sum(persistent_tensors(setting))


def persistent_tensors(setting: Setting) -> tuple[int, ...]:
    """Tensors that stay gathered on every rank: those up to stage3_param_persistence_threshold.

    parameter_offload.py, mark_persistent_parameters; stage3_model_persistence_threshold caps their sum.
    """
    largest = int(setting.case.zero("stage3_param_persistence_threshold"))
    cap = int(setting.case.zero("stage3_model_persistence_threshold"))
    found: list[int] = []
    for tensor in setting.tensors:
        if tensor <= largest and sum(found) + tensor <= cap:
            found.append(tensor)
    return tuple(found)


def _held(setting: Setting, step: StepKind | None) -> Bytes:
    """What lies on the device for the whole run; `step` None is before the first step's end."""
    case, elements = setting.case, setting.sharded
    parameters = 0 if case.offload_param is not Offload.NONE else case.element * elements
    bucket = case.bucket_bytes if case.zero("contiguous_gradients") else 0
    held = {Category.PARAMETERS: parameters, Category.REDUCE_BUFFERS: bucket}
    if setting.offloads:
        return add(held)
    gradients = {Category.GRADIENTS: case.gradient_element * elements}
    return add(held, gradients, setting.master_and_moments(setting.sub_groups, step))


def _init(setting: Setting) -> tuple[Bytes, ...]:
    """The model where it is built whole; then _create_fp32_partitions casts a sub-group and clones it, and
    initialize_optimizer_states fills zero gradients.
    """
    return (*_built_whole(setting), *_partitioned(setting))


def _built_whole(setting: Setting) -> tuple[Bytes, ...]:
    """The whole model, as the first part is cut from it (partition_parameters.py, _convert_to_zero_parameters)."""
    if setting.zero_init:
        return ()
    part = 0 if setting.case.offload_param is not Offload.NONE else setting.parts[0]
    return ({Category.PARAMETERS: setting.case.element * (setting.num_params + part)},)


def _partitioned(setting: Setting) -> tuple[Bytes, ...]:
    built: Bytes = add(_held(setting, None), _released_copy(setting, None))
    cast = 4 * setting.sub_group if setting.case.element == 2 else 0
    before = {key: built[key] for key in (Category.PARAMETERS, Category.MASTER_WEIGHTS) if key in built}
    if setting.offloads:  # a blocking copy to the host is cast there (aten/src/ATen/native/cuda/Copy.cu)
        return before, built
    return (
        add(before, {Category.MASTER_WEIGHTS: cast}),
        add(before, {Category.GRADIENTS: 4 * setting.sub_group}),
        built,
    )


def live_elements(setting: Setting) -> int:
    """Elements gathered at forward's end: what the prefetch has brought, or what backward uses again soon.

    partitioned_param_coordinator.py, _fetch_sub_module_impl and __params_to_release: a tensor is kept if no more than
    stage3_max_reuse_distance elements are used before it is used again, those after it twice.
    """
    case = setting.case
    if int(case.zero("stage3_prefetch_bucket_size")):
        live = int(case.zero("stage3_max_live_parameters"))
    else:
        live = int(case.zero("stage3_max_reuse_distance")) // 2
    return min(setting.num_params, max(live, persistent_elements(setting)))


def _gathered(setting: Setting, elements: int) -> Bytes:
    """Gathered parameters; one rank alone uses its partition in place (partition_parameters.py, NoGatherHandle)."""
    in_place = setting.case.world_size == 1 and setting.case.offload_param is Offload.NONE
    return {Category.GATHERED_PARAMETERS: 0 if in_place else setting.case.element * elements}


def _cut_elements(setting: Setting) -> int:
    """Elements that exist twice, as gathered and as the tensors cut from it, until all of a bucket have been used.

    partition_parameters.py, AllGatherCoalescedHandle.wait; the coordinator keeps the handle for each tensor.
    """
    return min(int(setting.case.zero("stage3_prefetch_bucket_size")), live_elements(setting))


def _reduction(setting: Setting, held: Bytes, live: int) -> tuple[Bytes, ...]:
    """A full bucket, interleaved into a copy to be reduce-scattered; then the last tensor, the embedding, on its way.

    comm/coalesced_collectives.py, reduce_scatter_coalesced; gloo reduces in one more copy.
    """
    left = max(min(setting.num_params - setting.bucket_fill(setting.case.bucket_elements), live), 0)
    copies = setting.case.element * setting.shared_bucket_fill(setting.case.bucket_elements)
    full = {Category.REDUCE_BUFFERS: copies if setting.on_gpu else 2 * copies}
    swapped = {Category.GRADIENTS: 4 * max(setting.parts) if swaps_optimizer(setting) else 0}
    last = add(_unswapped_gradients(setting), swapped, _norm(setting, max(setting.parts)))
    return add(held, _gathered(setting, left), full), add(held, _gathered(setting, setting.tensors[0]), last)


def _backward_end(setting: Setting, held: Bytes, *, traced: bool) -> Bytes:
    """Small parameters stay gathered once DeepSpeed has a trace of the modules."""
    persistent = _gathered(setting, persistent_elements(setting) if traced else 0)
    return add(held, persistent, _unswapped_gradients(setting))


def _norm(setting: Setting, elements: int) -> Bytes:
    """Where the optimizer is offloaded, norms are taken on the device on the way (_constant_buffered_norm2)."""
    if not setting.offloads:
        return {}
    return {Category.TEMPORARIES: _NORM_BYTES * min(elements, _NORM_ELEMENTS)}


def _first_norm(setting: Setting) -> Bytes:
    """The head's gradient is reduced at once where it fills the bucket."""
    if setting.first_gradient < setting.case.bucket_elements:
        return {}
    return _norm(setting, -(-setting.first_gradient // setting.case.world_size))


def _unswapped_gradients(setting: Setting) -> Bytes:
    """Gradients too small for the swapper wait for the update in fp32, on the device they were reduced on.

    stage3.py, _offload_grad_partition_at_boundary; swap_tensor/optimizer_utils.py, unswapped_gradients.
    """
    if not swaps_optimizer(setting):
        return {}
    return {Category.GRADIENTS: 4 * sum(part for part in setting.parts if not is_swappable(setting, part, 4))}


def _step(setting: Setting, step: StepKind, copied: Bytes) -> tuple[Bytes, ...]:
    """step(): everything is released, sub-groups are updated one after the other, small parameters gathered again."""
    after = _held(setting, step)
    end = add(after, _gathered(setting, persistent_elements(setting)))
    if setting.offloads:
        return add(after, copied, _unswapped_gradients(setting)), end
    before = add(_held(setting, None if step is StepKind.FIRST else step), copied)
    norm = {Category.TEMPORARIES: _NORM_BYTES * max(setting.parts)}
    return (add(before, norm), *_sub_group_updates(setting, before, step), end)


def _sub_group_updates(setting: Setting, before: Bytes, step: StepKind) -> list[Bytes]:
    """_prepare_fp32_grad_for_sub_group: a flat copy, cast to fp32; then the update, which makes the first moments."""
    element = setting.case.gradient_element
    instants: list[Bytes] = []
    for i, group in enumerate(setting.sub_groups):
        made = setting.moments(setting.sub_groups[:i]) if step is StepKind.FIRST else {}
        copies = element * group + (4 * group if element == 2 else 0)
        instants.append(add(before, made, {Category.GRADIENTS: copies}))
        made = setting.moments(setting.sub_groups[: i + 1]) if step is StepKind.FIRST else {}
        temporaries = {Category.TEMPORARIES: setting.update_temporaries([group])}
        instants.append(add(before, made, {Category.GRADIENTS: 4 * group}, temporaries))
    return instants
