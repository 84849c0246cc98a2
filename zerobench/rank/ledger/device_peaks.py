"""Peaks of torch's CUDA allocator, kept even if other code resets its counters.

DeepSpeed resets them while it builds an engine and wherever it prints memory (see_memory_usage,
deepspeed/runtime/utils.py); scripts do so in their loops. Resets through torch's function are intercepted, and the
peaks until then are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from zerobench.rank.ledger.allocator_snapshot import index_of

_PEAK = ".peak"

_looks: dict[Callable[[], object], None] = {}


def intercept_resets(look: Callable[[], object]) -> None:
    """Call `look` before every following reset of the peaks."""
    _looks[look] = None
    memory: Any = torch.cuda.memory
    if not hasattr(memory.reset_peak_memory_stats, "__wrapped__"):
        _stand_before(memory)


def _stand_before(memory: Any) -> None:
    """Intercept resets, and give the script its own peaks, which our resets would cut short."""
    reset, read = memory.reset_peak_memory_stats, memory.memory_stats

    @wraps(reset)
    def reset_by_script(device: Any = None) -> None:
        _look()
        reset(device)
        if torch.cuda.is_initialized():
            _SCRIPT.forget(memory._get_device_index(device, optional=True))

    @wraps(read)
    def read_by_script(device: Any = None) -> dict[str, int]:
        if not torch.cuda.is_initialized():
            stats: dict[str, int] = read(device)
            return stats
        return _SCRIPT.stats(memory._get_device_index(device, optional=True))

    memory.reset_peak_memory_stats = torch.cuda.reset_peak_memory_stats = reset_by_script
    memory.memory_stats = torch.cuda.memory_stats = read_by_script


def _look() -> None:
    if torch.cuda.is_initialized():
        for each in _looks:
            each()


def _original(function: Any) -> Any:
    """The function of torch that `_stand_before` has replaced, if it has."""
    return getattr(function, "__wrapped__", function)


class DevicePeaks:
    """Largest value of each of the allocator's peaks since the last `begin`."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, int]] = {}

    def watch(self) -> None:
        """Keep the peaks across resets by other code, from now on."""
        intercept_resets(self.keep)

    def begin(self, device: torch.device) -> None:
        """Reset the peaks; those that the script reads continue."""
        _look()
        _SCRIPT.keep()
        _original(torch.cuda.reset_peak_memory_stats)(device)
        self._kept.clear()

    def stats(self, device: torch.device | int) -> dict[str, int]:
        """Return torch.cuda.memory_stats() of the device, with these peaks."""
        stats: dict[str, int] = _original(torch.cuda.memory_stats)(device)
        peaks = self._kept.get(index_of(device), {})
        return type(stats)({**stats, **{name: max(peak, stats.get(name, 0)) for name, peak in peaks.items()}})

    def largest(self, name: str) -> int:
        """Largest peak of `name` over all devices, for example `allocated_bytes.all`."""
        return max(self.stats(index).get(name + _PEAK, 0) for index in range(torch.cuda.device_count()))

    def keep(self) -> None:
        """Save the peaks before they are reset."""
        for index in range(torch.cuda.device_count()):
            stats = self.stats(index)
            self._kept[index] = {name: value for name, value in stats.items() if name.endswith(_PEAK)}

    def forget(self, index: int) -> None:
        """Drop the saved peaks of one device."""
        self._kept.pop(index, None)


PHASE = DevicePeaks()
"""Peaks of the phase that the ledger accounts for, or of start-up before the first phase."""

_SCRIPT = DevicePeaks()
"""Peaks since the script's own last reset."""
