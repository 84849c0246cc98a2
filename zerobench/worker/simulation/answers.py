"""What a simulated tensor answers when code asks for its value: only what is known, by the place that asks.

Fake tensors have no values, and an invented one may change the path that the engine takes: a made-up overflow skips
the optimizer step that allocates Adam's moments. So each place that asks is listed with the answer that an ordinary
training step gives there, and why; a place that is not listed is an error that names it.
"""

from __future__ import annotations

import sys
from types import FrameType


class UnknownValueError(RuntimeError):
    """Code asked for the value of a tensor that has none, at a place with no known answer."""


# File (from its package's name on; "" ends a prefix), function, answer, why. The innermost frame that fits decides.
_ANSWERS: tuple[tuple[str, str, float, str], ...] = (
    ("deepspeed/runtime/utils.py", "has_overflow", 0.0, "a step without overflow"),
    ("deepspeed/runtime/utils.py", "check", 0.0, "a step without overflow"),
    ("deepspeed/runtime/utils.py", "_has_inf_or_nan", 0.0, "finite gradients"),
    ("deepspeed/runtime/zero/stage_1_and_2.py", "has_overflow", 0.0, "a step without overflow"),
    ("deepspeed/runtime/zero/stage_1_and_2.py", "_has_inf_or_nan", 0.0, "finite gradients"),
    ("deepspeed/runtime/zero/stage3.py", "has_overflow", 0.0, "a step without overflow"),
    ("deepspeed/runtime/zero/stage3.py", "_has_inf_or_nan", 0.0, "finite gradients"),
    ("deepspeed/runtime/utils.py", "is_invalid_grad_norm", 0.0, "a finite norm"),
    ("deepspeed/runtime/utils.py", "get_grad_norm", 1.0, "a finite norm"),
    ("deepspeed/runtime/utils.py", "get_global_norm", 1.0, "a finite norm"),
    ("deepspeed/runtime/utils.py", "get_weight_norm", 1.0, "a finite norm"),
    ("deepspeed/runtime/utils.py", "clip_gradients", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage_1_and_2.py", "get_grad_norm_direct", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage_1_and_2.py", "scaled_global_norm", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage_1_and_2.py", "complete_grad_norm_calculation_for_cpu_offload", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage_1_and_2.py", "unscale_and_clip_grads", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage3.py", "get_grad_norm_direct", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage3.py", "unscale_and_clip_grads", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage3.py", "_get_norm_groups", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage3.py", "complete_grad_norm_calculation_for_cpu_offload", 1.0, "a finite norm"),
    ("deepspeed/runtime/zero/stage3.py", "set_norm_for_param_grad_in_gpu", 1.0, "a finite norm"),
    ("deepspeed/runtime/engine.py", "clip_fp32_gradients", 1.0, "a finite norm"),
    ("transformers/masking_utils.py", "find_packed_sequence_indices", 1.0, "a batch without packed sequences"),
)


def answer() -> float:
    """The value for the code that asks now.

    Raises:
        UnknownValueError: nobody has said what an ordinary training step answers there.

    """
    frame: FrameType | None = sys._getframe(2)
    where: list[str] = []
    while frame is not None:
        filename, function = frame.f_code.co_filename, frame.f_code.co_name
        for file, name, value, _ in _ANSWERS:
            if name == function and filename.endswith(file):
                return value
        where.append(f"{filename}:{frame.f_lineno} {function}")
        frame = frame.f_back
    raise UnknownValueError("a simulated tensor has no value; asked by " + " < ".join(where[:12]))
