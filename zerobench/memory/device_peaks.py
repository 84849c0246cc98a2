"""Peaks of torch's CUDA allocator, whoever else resets its counters meanwhile.

DeepSpeed does while it builds an engine and wherever it prints memory (see_memory_usage, deepspeed/runtime/utils.py);
scripts do in their loops. Whoever resets by torch's own function is seen, and the peaks until then are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

import torch

_RESET = "reset_peak_memory_stats"
_PEAK = ".peak"

_looks: dict[Callable[[], object], None] = {}
_kept: dict[int, dict[str, int]] = {}


def before_resets(look: Callable[[], object]) -> None:
    """Call `look` before anyone resets the peaks, from now on."""
    _looks[look] = None
    torch_memory: Any = torch.cuda.memory
    if hasattr(torch_memory.reset_peak_memory_stats, "__wrapped__"):
        return
    reset = _seen(torch_memory.reset_peak_memory_stats)
    homes: tuple[ModuleType, ...] = (torch.cuda.memory, torch.cuda)
    for home in homes:
        setattr(home, _RESET, reset)


def _seen(reset: Callable[..., None]) -> Callable[..., None]:
    @wraps(reset)
    def seen(*args: Any, **kwargs: Any) -> None:
        if torch.cuda.is_initialized():
            for look in _looks:
                look()
        reset(*args, **kwargs)

    return seen


def keep_peaks() -> None:
    """Keep the peaks of a phase that others reset."""
    before_resets(_keep)


def begin_peaks(device: torch.device) -> None:
    """Let the peaks begin anew, and forget those that were kept."""
    torch.cuda.reset_peak_memory_stats(device)
    _kept.clear()


def stats_with_peaks(device: torch.device | int) -> dict[str, int]:
    """torch.cuda.memory_stats() of the device, its peaks those since `begin_peaks`."""
    stats: dict[str, int] = torch.cuda.memory_stats(device)
    kept = _kept.get(_index(device), {})
    return {**stats, **{name: max(peak, stats.get(name, 0)) for name, peak in kept.items()}}


def _keep() -> None:
    for index in range(torch.cuda.device_count()):
        stats = stats_with_peaks(index)
        _kept[index] = {name: value for name, value in stats.items() if name.endswith(_PEAK)}


def _index(device: torch.device | int) -> int:
    if isinstance(device, int):
        return device
    return torch.cuda.current_device() if device.index is None else device.index
