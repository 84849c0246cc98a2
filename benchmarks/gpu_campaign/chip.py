"""What the driver tells of the chip while work runs: its clock, its power, what slows it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import pynvml

EVERY_S = 0.02


class Sample(NamedTuple):
    """One reading."""

    at_s: float
    """Since the first."""
    sm_mhz: float
    power_w: float
    reasons: int
    """NVML's bits of what holds the clock back (nvmlClocksEventReasons: 4 is the power cap)."""


class Chip:
    """Readings of the first GPU by a thread, from entering to leaving."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def means(self) -> dict[str, int]:
        """Of clock and power, by their columns' names."""
        return {
            name: round(statistics.fmean(getattr(sample, name) for sample in self.samples))
            for name in ("sm_mhz", "power_w")
        }

    def _read(self) -> None:
        while True:
            self.samples.append(
                Sample(
                    time.monotonic() - self._begun,
                    _told(pynvml.nvmlDeviceGetClockInfo, self._gpu, pynvml.NVML_CLOCK_SM),
                    _told(pynvml.nvmlDeviceGetPowerUsage, self._gpu) / 1e3,
                    _told(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self._gpu),
                )
            )
            if self._ended.wait(EVERY_S):
                return


def _told(call: Callable[..., int], *arguments: Any) -> int:
    """0 where the driver does not tell."""
    try:
        return call(*arguments)
    except pynvml.NVMLError:
        return 0
