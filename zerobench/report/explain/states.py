"""Accounts of the model states: parameters, gradients and what Adam keeps, by stage and phase.

Which copies come and go is read in DeepSpeed's source; zerobench.formulas.deepspeed names the functions, and gives
the sizes from which the terms here are made.
"""

from __future__ import annotations

from collections.abc import Iterator

from zerobench.formulas.deepspeed import Setting
from zerobench.formulas.zeropp import second_copy_elements
from zerobench.records import Category, Phase, Place
from zerobench.report.explain.terms import Account, Term, account, of_elements, of_parameters, of_partition
from zerobench.spec.trial import Offload

MOMENTS = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)


def states_accounts(setting: Setting, category: Category, phase: Phase, place: Place) -> Iterator[Account]:
    """What may lie in a category of model states of `place` within `phase`."""
    if category in MOMENTS:
        yield _divided(setting, 4, from_stage=1)
    elif category is Category.PARAMETERS:
        yield from _parameters(setting, place)
    elif category is Category.GRADIENTS:
        yield from _host_gradients(setting) if place is Place.HOST else _gradients(setting, phase)


def _divided(setting: Setting, element: int, *, from_stage: int) -> Account:
    """Whole below the stage that divides it."""
    divides = setting.case.stage >= from_stage
    return of_partition(setting, element) if divides else of_parameters(setting, element)


def _parameters(setting: Setting, place: Place) -> Iterator[Account]:
    case = setting.case
    if (place is Place.DEVICE) != (case.offload_param is Offload.NONE):
        return
    if case.stage in {1, 2}:
        padding = setting.flat_partition * case.world_size - setting.num_params
        yield account(
            *of_parameters(setting, case.element),
            Term(case.element * padding, f"padding to a multiple of 2 x {case.world_size} ranks"),
        )
    else:
        yield _divided(setting, case.element, from_stage=3)
        if (size := int(case.zero("zero_hpz_partition_size"))) > 1:
            copy = second_copy_elements(setting.tensors, case.world_size, size)
            what = f"hpZ's second copy among {size} ranks"
            yield account(*_divided(setting, case.element, from_stage=3), of_elements(case.element, copy, what))


def _gradients(setting: Setting, phase: Phase) -> Iterator[Account]:
    by_stage = (_stage_0, _stage_1_and_2, _stage_1_and_2, _stage_3)
    yield from by_stage[setting.case.stage](setting, phase)
    if phase is Phase.BACKWARD:
        first = of_elements(setting.case.element, setting.first_gradient, "the first gradient of backward, the head's")
        yield account(*_before_backward(setting), first)


def _before_backward(setting: Setting) -> Account:
    """Gradients that are there when a backward pass begins: stage 3's partition, and what earlier micro steps left."""
    case = setting.case
    if case.stage == 3:
        return () if setting.offloads else of_partition(setting, case.gradient_element)
    if case.micro_steps == 1:
        return ()
    return _own(setting) if case.stage == 2 else of_parameters(setting, case.gradient_element)


def _stage_0(setting: Setting, phase: Phase) -> Iterator[Account]:
    """fused_optimizer.py and unfused_optimizer.py, step: fp32 copies of 16-bit gradients."""
    whole = of_parameters(setting, setting.case.element)
    yield whole
    if phase is not Phase.STEP or setting.case.element == 4:
        return
    cast = of_parameters(setting, 4, "their fp32 copies")
    flat = of_parameters(setting, 4, "these flattened")
    yield account(*whole, *cast)
    yield cast
    if setting.optimizer_info.is_flattened_in_16_bits:
        yield account(*whole, *cast, *flat)
        yield account(*cast, *flat)


def _stage_1_and_2(setting: Setting, phase: Phase) -> Iterator[Account]:
    """stage_1_and_2.py: copy_grads_in_partition, get_flat_partition, step; runtime/bf16_optimizer.py."""
    case = setting.case
    if case.runs_bf16_optimizer:
        yield of_parameters(setting, 4, "kept in fp32 for the whole run (BF16_Optimizer)")
        return
    own = _own(setting)
    if phase is Phase.STEP:
        cast = of_partition(setting, 4, "cast to fp32 for the update") if case.element == 2 else ()
        flat = of_partition(setting, case.element, "flattened into one copy")
        yield own
        yield account(*own, *flat)
        yield account(*own, *flat, *cast)
        yield cast or flat
        return
    yield own
    if case.stage == 1:
        whole = of_parameters(setting, case.gradient_element, "kept whole until the end of backward")
        yield whole
        yield account(*whole, *own)
        left = setting.num_params - setting.bucket_fill(case.bucket_elements)
        yield account(of_elements(case.gradient_element, left, "not yet in the bucket"), *own)
    elif case.micro_steps > 1:
        yield account(*own, *(Term(term.nbytes, f"summed over micro steps, {term.text}") for term in own))


def _own(setting: Setting) -> Account:
    """Gradients of the tensors that reach into the partition, each whole, and zeros where the partition is padding."""
    case = setting.case
    if case.gradient_element == 4 and case.element == 2:
        return of_partition(setting, 4, "of the partition, summed in fp32")
    if setting.offloads:
        return ()
    tensors = sum(tensor for tensor, _ in setting.own_tensors)
    inside = sum(inside for _, inside in setting.own_tensors)
    return account(
        Term(case.element * inside, f"of the partition: {case.element} bytes x {inside:,} elements"),
        Term(case.element * (setting.flat_partition - inside), "padding of the partition"),
        Term(case.element * (tensors - inside), "tensors across the partition's edge, kept whole"),
    )


def _stage_3(setting: Setting, phase: Phase) -> Iterator[Account]:
    """stage3.py: grad_partitions_flat_buffer, _prepare_fp32_grad_for_sub_group."""
    case = setting.case
    held = () if setting.offloads else of_partition(setting, case.gradient_element)
    yield held
    if phase is not Phase.STEP or setting.offloads:
        return
    cast = of_elements(4, setting.sub_group, "a sub-group cast to fp32 for the update") if case.element == 2 else None
    flat = of_elements(case.gradient_element, setting.sub_group, "a sub-group flattened into one copy")
    yield account(*held, flat, cast)
    yield account(*held, cast or flat)


def _host_gradients(setting: Setting) -> Iterator[Account]:
    """stage_1_and_2.py and stage3.py, __init__: fp32 gradients beside the offloaded states."""
    if not setting.offloads:
        return
    in_fp32 = of_partition(setting, 4, "in fp32, for the update")
    as_reduced = of_partition(setting, setting.case.gradient_element, "as they were reduced")
    yield in_fp32
    yield account(*in_fp32, *as_reduced)
    yield as_reduced
