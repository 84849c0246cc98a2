"""Bytes that stage 3 swaps to and from NVMe in a step, in closed form (runtime/swap_tensor, DeepSpeed 0.19.8).

Every update reads the files of each sub-group's master weights, moments and gradients and writes what it makes of them;
there are no moments to read before the first. Files are cut to the swapper's alignment. Parameters that are swapped are
read for every gather of the passes, less what stays gathered between two, and written once.
"""

from __future__ import annotations

from collections.abc import Iterable

from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.trial.trial import Offload
from zerobench.estimate.memory.deepspeed.setting import Setting
from zerobench.estimate.memory.deepspeed.stage_3_offload import swapped_numbers
from zerobench.estimate.memory.deepspeed.swapping import aligned, is_swappable, swaps_optimizer
from zerobench.records.records import NvmeTraffic

_FP32 = 4


def swapped(setting: Setting) -> list[NvmeTraffic]:
    """Bytes that one rank reads and writes in the first step and a steady one, without times; none without NVMe."""
    if Offload.NVME not in {setting.case.offload_optimizer, setting.case.offload_param}:
        return []
    return [row for step in StepKind for row in _step(setting, step)]


def _step(setting: Setting, step: StepKind) -> list[NvmeTraffic]:
    weights = gradients = moments = 0
    if swaps_optimizer(setting):
        weights = _FP32 * sum(aligned(setting, group, _FP32) for group in setting.sub_groups)
        gradients = _FP32 * sum(part for part in setting.parts if is_swappable(setting, part, _FP32))
        moments = len(setting.optimizer_info.states) * weights
    early = _written_in_backward(setting) if swaps_optimizer(setting) else 0
    written = [setting.parts[number] for number in swapped_numbers(setting, setting.tensors)]
    read = {} if setting.gathers is None else setting.gathers.read
    known = weights + gradients + (0 if step is StepKind.FIRST else moments)
    return [
        NvmeTraffic(step=step, phase=phase, read_bytes=read_bytes, written_bytes=written_bytes, seconds=0.0)
        for phase, read_bytes, written_bytes in (
            *(
                (phase, setting.case.micro_steps * _parameters_bytes(setting, read.get(phase, ())), nbytes)
                for phase, nbytes in ((Phase.FORWARD, 0), (Phase.BACKWARD, early))
            ),
            (Phase.STEP, known, weights + gradients - early + moments + _parameters_bytes(setting, written)),
        )
    ]


def _written_in_backward(setting: Setting) -> int:
    """Gradients that fill a buffer, of the largest sub-group's size, are written when the next has no room in it; what
    is left in the last one is when the update begins (async_swapper.py, `_make_swap_space`).
    """
    room = aligned(setting, setting.sub_group, _FP32)
    filled = written = 0
    for part in reversed(setting.parts):
        if not is_swappable(setting, part, _FP32):
            continue
        if filled + part > room:
            written, filled = written + filled, 0
        filled += part
    return _FP32 * written


def _parameters_bytes(setting: Setting, parts: Iterable[int]) -> int:
    element = setting.case.element
    return element * sum(aligned(setting, part, element) for part in parts)
