"""Stage 0, and the plain torch loop: all model states on every rank.

In fp32 DeepSpeed runs the torch optimizer itself. In 16 bits it wraps it: FusedAdam in FP16_Optimizer
(runtime/fp16/fused_optimizer.py), others in FP16_UnfusedOptimizer (unfused_optimizer.py), for bf16 too. Both take an
optimizer step on zero gradients while the engine is built, so that the moments are there from initialisation on.
"""

from __future__ import annotations

from zerobench.formulas.deepspeed.setting import Bytes, Moments, Setting, add
from zerobench.records import Category, StepKind

ALLREDUCE_ELEMENTS = 500_000_000
"""runtime/engine.py, MEMORY_OPT_ALLREDUCE_SIZE; no key sets it."""


def device(setting: Setting, step: StepKind) -> Moments:
    """The device's bytes under DeepSpeed."""
    if setting.case.element == 4:
        return _loop(setting, step, reduce_bytes=_reduce_bytes(setting))
    parameters = _parameters(setting)
    before = add(parameters, setting.master_and_moments(setting.tensors, None))
    states = add(before, setting.moments(setting.tensors))
    init = (*_wrapping(setting), add(states, _start_up(setting)), states)
    return _moments(setting, states, init, _half_precision_step(setting, states), _reduce_bytes(setting))


def plain_device(setting: Setting, step: StepKind) -> Moments:
    """The device's bytes of a plain torch loop with fp32 masters beside a 16-bit model (the strategy `single`)."""
    return _loop(setting, step, reduce_bytes=0)


def _parameters(setting: Setting) -> Bytes:
    return {Category.PARAMETERS: setting.case.element * setting.num_params}


def _gradients(elements: int, element: int) -> Bytes:
    return {Category.GRADIENTS: element * elements}


def _reduce_bytes(setting: Setting) -> int:
    """runtime/engine.py, allreduce_bucket: the gradients' flat copy."""
    return setting.case.element * setting.bucket_fill(ALLREDUCE_ELEMENTS)


def _is_flattened(setting: Setting) -> bool:
    return setting.optimizer_info.is_flattened_in_16_bits


def _wrapping(setting: Setting) -> tuple[Bytes, ...]:
    """FP16_Optimizer holds the model, clones of its tensors and their flat copy for a moment."""
    copies = 3 if _is_flattened(setting) else 1
    return ({Category.PARAMETERS: copies * setting.case.element * setting.num_params},)


def _start_up(setting: Setting) -> Bytes:
    """initialize_optimizer_states: zero gradients in fp32, and in the unfused version in 16 bits too."""
    fused = _is_flattened(setting)
    gradients = _gradients(setting.num_params, 4 if fused else 4 + setting.case.element)
    return add(gradients, {Category.TEMPORARIES: setting.update_temporaries(setting.tensors)})


def _half_precision_step(setting: Setting, states: Bytes) -> tuple[Bytes, ...]:
    """fused_optimizer.py, step: fp32 gradients twice, one by one and flat; unfused_optimizer.py: once."""
    fused, element = _is_flattened(setting), setting.case.element
    casts = _gradients(setting.num_params, element + (8 if fused else 4))
    update = add(
        _gradients(setting.num_params, 4 if fused else 4 + element),
        {Category.TEMPORARIES: setting.update_temporaries(setting.tensors)},
    )
    return add(states, casts), add(states, update), states


def _loop(setting: Setting, step: StepKind, reduce_bytes: int) -> Moments:
    """The torch optimizer over the parameters, or over their fp32 masters; the moments appear in the first step."""
    parameters, num_params, element = _parameters(setting), setting.num_params, setting.case.element
    masters = {} if element == 4 else {Category.MASTER_WEIGHTS: 4 * num_params}
    built = add(parameters, masters)
    states = add(built, setting.moments(setting.tensors))
    held = built if step is StepKind.FIRST else states
    update = add(states, _gradients(num_params, 4), {Category.TEMPORARIES: setting.update_temporaries(setting.tensors)})
    return _moments(setting, held, (built,), (update, states), reduce_bytes)


def _moments(
    setting: Setting, held: Bytes, init: tuple[Bytes, ...], step: tuple[Bytes, ...], reduce_bytes: int
) -> Moments:
    """Gradients grow in backward, stay between micro steps and are freed after the update."""
    whole = _gradients(setting.num_params, setting.case.element)
    between = add(held, whole) if setting.case.micro_steps > 1 else held
    first = (
        between if setting.case.micro_steps > 1 else add(held, _gradients(setting.first_gradient, setting.case.element))
    )
    end = add(held, whole)
    return Moments(
        init=init,
        gathering=between,
        forward=between,
        first_gradient=first,
        bucketed=first,
        reduction=(add(end, {Category.REDUCE_BUFFERS: reduce_bytes}),),
        backward_end=end,
        step=step,
    )
