"""Peaks of torch's CUDA allocator, whoever else resets its counters meanwhile.

DeepSpeed does while it builds an engine and wherever it prints memory (see_memory_usage, deepspeed/runtime/utils.py);
scripts do in their loops. Whoever resets by torch's own function is seen, and the peaks until then are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from zerobench.memory.allocator_snapshot import index_of

_PEAK = ".peak"

_looks: dict[Callable[[], object], None] = {}


def before_resets(look: Callable[[], object]) -> None:
    """Call `look` before anyone resets the peaks, from now on."""
    _looks[look] = None
    memory: Any = torch.cuda.memory
    reset = memory.reset_peak_memory_stats
    if hasattr(reset, "__wrapped__"):
        return

    @wraps(reset)
    def seen(*args: Any, **kwargs: Any) -> None:
        if torch.cuda.is_initialized():
            for each in _looks:
                each()
        reset(*args, **kwargs)

    memory.reset_peak_memory_stats = torch.cuda.reset_peak_memory_stats = seen


class DevicePeaks:
    """The largest of each of the allocator's peaks since the last `begin`."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, int]] = {}

    def watch(self) -> None:
        """Keep what others reset, from now on."""
        before_resets(self._keep)

    def begin(self, device: torch.device) -> None:
        """Let the peaks begin anew."""
        torch.cuda.reset_peak_memory_stats(device)
        self._kept.clear()

    def stats(self, device: torch.device | int) -> dict[str, int]:
        """torch.cuda.memory_stats() of the device, with these peaks."""
        stats: dict[str, int] = torch.cuda.memory_stats(device)
        kept = self._kept.get(index_of(device), {})
        return {**stats, **{name: max(peak, stats.get(name, 0)) for name, peak in kept.items()}}

    def largest(self, name: str) -> int:
        """Of the fullest device the peak of `name`, as in `allocated_bytes.all`."""
        return max(self.stats(index).get(name + _PEAK, 0) for index in range(torch.cuda.device_count()))

    def _keep(self) -> None:
        for index in range(torch.cuda.device_count()):
            stats = self.stats(index)
            self._kept[index] = {name: value for name, value in stats.items() if name.endswith(_PEAK)}


PHASE = DevicePeaks()
"""Of the phase that the ledger accounts for, or of start-up before the first."""
