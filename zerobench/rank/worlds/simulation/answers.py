"""What a simulated tensor answers when code asks for its value: only what is known, by the place that asks.

Fake tensors have no values, and an invented one may change the path that the engine takes: a made-up overflow skips
the optimizer step that allocates Adam's moments. So each place that asks is listed with the answer that an ordinary
training step gives there, and why; a place that is not listed is an error that names it.
"""

from __future__ import annotations

import re
import sys
from types import FrameType


class UnknownValueError(RuntimeError):
    """Code asked for the value of a tensor that has none, at a place with no known answer."""


# Package of the code that asks (its innermost frame in one of them decides), function, answer. The first row that fits.
_ANSWERS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    # Gradients are finite: no step is skipped, no loss scale changes.
    ("deepspeed/runtime/", re.compile(r".*(overflow|inf_or_nan|invalid).*"), 0.0),
    # Their norm is a number, so clipping multiplies by one; the step takes the same path for any finite norm.
    ("deepspeed/runtime/", re.compile(r".*(norm|clip).*"), 1.0),
    ("deepspeed/runtime/bf16_optimizer.py", re.compile(r"step"), 1.0),  # where releases before 0.19.8 assert it
    # Between a server and its workers no update is missed.
    ("zerobench/rank/strategies/server_link.py", re.compile(r"hear"), 0.0),
    # All stages of a pipeline have said their shapes (strategies/phased_stage.py), so none need be found out.
    ("torch/distributed/pipelining/schedules.py", re.compile(r"_warmup_p2p"), 1.0),
    # Batches hold one sequence a row, without padding.
    ("transformers/masking_utils.py", re.compile(r"find_packed_sequence_indices"), 1.0),
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
        for package, pattern, value in _ANSWERS:
            if f"/{package}" in filename and pattern.fullmatch(function):
                return value
        where.append(f"{filename}:{frame.f_lineno} {function}")
        frame = frame.f_back
    raise UnknownValueError("a simulated tensor has no value; asked by " + " < ".join(where[:12]))
