"""Stage 0, and the plain torch loop: all model states on every rank.

In fp32 DeepSpeed runs the torch optimizer itself. In 16 bits it wraps it: FusedAdam in FP16_Optimizer
(runtime/fp16/fused_optimizer.py), others in FP16_UnfusedOptimizer (unfused_optimizer.py), for bf16 too. Both take an
optimizer step on zero gradients while the engine is built, so that the moments are there from initialisation on.
"""

from __future__ import annotations

from zerobench.common.vocabulary import Category, StepKind
from zerobench.estimate.memory.deepspeed.setting import (
    ALLREDUCE_ELEMENTS,
    CLONES,
    MODEL_TENSORS,
    TENSOR_CASTS,
    Instants,
    Setting,
)
from zerobench.estimate.memory.terms.terms import Bytes, Terms, add

_CASTS = "their fp32 copies"


def device(setting: Setting, step: StepKind) -> Instants:
    """The device's bytes under DeepSpeed."""
    if setting.case.element == 4:
        return _loop(setting, step, copied(setting))
    before = add(_parameters(setting), setting.master_and_moments(setting.tensors, None))
    states = add(before, setting.moments(setting.tensors))
    casting = (add(before, _cloned(setting)),) if _is_flattened(setting) else ()
    init = (_wrapping(setting), *casting, add(states, _start_up(setting)), states)
    return _instants(setting, states, init, _half_precision_step(setting, states), copied(setting))


def plain_device(setting: Setting, step: StepKind) -> Instants:
    """The device's bytes of a plain torch loop with fp32 masters beside a 16-bit model (the strategy `single`), unless
    what is trained of it is in fp32.
    """
    return _loop(setting, step, {})


def _parameters(setting: Setting) -> Terms:
    return setting.share(Category.PARAMETERS, setting.trained_element, setting.num_params)


def _gradients(setting: Setting, element: int, what: str = "") -> Terms:
    return setting.share(Category.GRADIENTS, element, setting.num_params, what)


def copied(setting: Setting) -> Terms:
    """Flattened copy of the gradients that are all-reduced."""
    what = "gradients flattened into one copy to be all-reduced"
    return setting.copied(setting.case.element, ALLREDUCE_ELEMENTS, what, "runtime/engine.py, allreduce_bucket")


def _is_flattened(setting: Setting) -> bool:
    return setting.optimizer_info.is_flattened_in_16_bits


def _wrapping(setting: Setting) -> Bytes:
    """FP16_Optimizer holds the model, clones of its tensors and their flat copy for a moment."""
    model, clones = (
        setting.share(Category.PARAMETERS, setting.case.element, setting.num_params, what)
        for what in (MODEL_TENSORS, CLONES)
    )
    return add(model, clones, _parameters(setting)) if _is_flattened(setting) else model


def _cloned(setting: Setting) -> Terms:
    """Clone from which the master weights are cast."""
    return setting.share(Category.PARAMETERS, setting.case.element, setting.num_params, "a clone of their flat copy")


def _start_up(setting: Setting) -> Bytes:
    """initialize_optimizer_states: zero gradients in fp32, and in the unfused version in 16 bits too."""
    in_16_bits = {} if _is_flattened(setting) else _gradients(setting, setting.case.element)
    return add(_gradients(setting, 4, "zeros in fp32"), in_16_bits, setting.update_temporaries(setting.tensors))


def half_precision_casts(setting: Setting) -> Terms:
    """fused_optimizer.py, step: fp32 gradients twice, one by one and flat; unfused_optimizer.py: once."""
    each = setting.share(Category.TEMPORARIES, 4, setting.num_params, TENSOR_CASTS)
    return add(each if _is_flattened(setting) else {}, _gradients(setting, 4, _CASTS))


def _half_precision_step(setting: Setting, states: Bytes) -> tuple[Bytes, ...]:
    """The flat copy, or the casts beside the 16-bit gradients, are what is updated with."""
    whole, casts = _gradients(setting, setting.case.element), _gradients(setting, 4, _CASTS)
    left = casts if _is_flattened(setting) else add(whole, casts)
    update = add(states, left, setting.update_temporaries(setting.tensors))
    return add(states, whole, half_precision_casts(setting)), update, states


def _loop(setting: Setting, step: StepKind, copied: Bytes) -> Instants:
    """The torch optimizer over the parameters, or over their fp32 masters; the moments appear in the first step."""
    in_fp32 = setting.trained_element == 4
    built = add(_parameters(setting), {} if in_fp32 else setting.master_and_moments(setting.tensors, None))
    states = add(built, setting.moments(setting.tensors))
    held = built if step is StepKind.FIRST else states
    gradients = _gradients(setting, 4, "" if in_fp32 else _CASTS)
    update = add(states, gradients, setting.update_temporaries(setting.tensors))
    return _instants(setting, held, (built,), (update, states), copied)


def _instants(
    setting: Setting, held: Bytes, init: tuple[Bytes, ...], step: tuple[Bytes, ...], copied: Bytes
) -> Instants:
    """Gradients grow in backward, stay between micro steps and are freed after the update."""
    end = add(held, _gradients(setting, setting.trained_element))
    between = end if setting.case.micro_steps > 1 else held
    first = end if setting.case.micro_steps > 1 else add(held, setting.first_gradient_whole)
    return Instants(
        init=init,
        gathering=between,
        forward=between,
        first_gradient=first,
        bucketed=first,
        reduction=(add(end, copied),),
        backward_end=end,
        step=step,
    )
