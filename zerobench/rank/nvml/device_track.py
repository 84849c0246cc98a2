"""Figures of one device while the sampler runs: peak, largest gap, energy.

One thread reads the device (`sample`), with as little work as possible; another evaluates the readings later (`note`),
many at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zerobench.rank.nvml.nvml import DeviceInfo, DeviceProcess, DeviceReader, Reading, unix_time_s
from zerobench.rank.nvml.nvml_driver import NOT_AVAILABLE
from zerobench.records.nvml_samples import Values, row
from zerobench.records.records import NvmlDevice

RETRY_S = 1.0
"""Seconds until a device that failed without being lost is read again."""


@dataclass
class EnergyCount:
    """Energy since the first reading, from the driver's counter, or from power over time without a counter."""

    _first: Reading | None = None
    _last: Reading | None = None
    _counted: tuple[float, float] | None = None
    """First and last value of the counter."""
    _integrated_joules: float = 0.0

    def add(self, reading: Reading) -> None:
        """Add a reading with power or energy."""
        if reading.energy_joules is not None:
            begin = self._counted[0] if self._counted else reading.energy_joules
            self._counted = (begin, reading.energy_joules)
        if self._last and self._last.power_watts is not None and reading.power_watts is not None:
            seconds = reading.t_s - self._last.t_s
            self._integrated_joules += seconds * (self._last.power_watts + reading.power_watts) / 2
        self._first, self._last = self._first or reading, reading

    @property
    def joules(self) -> float | None:
        """Energy so far; None before the second reading."""
        if self._last is self._first:
            return None
        return self._counted[1] - self._counted[0] if self._counted else self._integrated_joules

    @property
    def mean_watts(self) -> float | None:
        """Mean power over the time of the readings."""
        if self.joules is None or self._first is None or self._last is None:
            return None
        return self.joules / (self._last.t_s - self._first.t_s)


@dataclass
class DeviceTrack:
    """One device, from its baseline on."""

    reader: DeviceReader
    device: DeviceInfo
    others: list[DeviceProcess]
    """Processes found on the device before the trial used it."""
    faults: list[str]
    """List that receives faults, in order of time."""
    num_samples: int = 0
    largest_gap_s: float | None = None
    """Longest time between two readings of the memory."""
    _baseline_bytes: int | None = None
    _peak_bytes: int | None = None
    _reserved_bytes: int | None = None
    _last_s: float | None = None
    _energy: EnergyCount = field(default_factory=EnergyCount)
    _known_fault: str | None = None
    _retry_at_s: float = 0.0

    def sample(self, *, power: bool) -> Reading | None:
        """Read the device; None while it rests after a fault."""
        if self._retry_at_s and (self.reader.lost or unix_time_s() < self._retry_at_s):
            return None
        reading = self.reader.read(power=power)
        if self.reader.fault != self._known_fault or self._retry_at_s:
            self._note_fault(reading.t_s)
        return reading

    def note(self, values: Values) -> str | None:
        """Evaluate a reading, in order of time; returns its line for the file, or None if it has no figure.

        Reserved bytes may still be NOT_AVAILABLE.
        """
        t_s, used_bytes, reserved_bytes, watts, joules = values
        if watts is not None or joules is not None:
            self._energy.add(Reading(*values))
        elif used_bytes is None:
            return None
        if reserved_bytes == NOT_AVAILABLE:
            reserved_bytes = None
        if used_bytes is not None:
            if self._last_s is None or self._peak_bytes is None:
                self._baseline_bytes = self._peak_bytes = used_bytes
            else:
                self._peak_bytes = max(self._peak_bytes, used_bytes)
                self.largest_gap_s = max(self.largest_gap_s or 0.0, t_s - self._last_s)
            self._last_s, self._reserved_bytes = t_s, reserved_bytes
        self.num_samples += 1
        return row(self.device.uuid, (t_s, used_bytes, reserved_bytes, watts, joules))

    def _note_fault(self, t_s: float) -> None:
        """Record each fault once; a faulty device rests before it is read again."""
        fault = self.reader.fault
        if fault and fault != self._known_fault:
            self.faults.append(f"{self.device.uuid}: {fault} at {t_s:.3f}")
        self._known_fault = fault
        self._retry_at_s = t_s + RETRY_S if fault else 0.0

    def record(self) -> NvmlDevice:
        """Entry of the device in the summary."""
        return NvmlDevice(
            gpu_uuid=self.device.uuid,
            name=self.device.name,
            index=self.device.index,
            total_bytes=self.device.total_bytes,
            reserved_bytes=self._reserved_bytes,
            baseline_used_bytes=self._baseline_bytes,
            peak_used_bytes=self._peak_bytes,
            energy_joules=self._energy.joules,
            mean_power_watts=self._energy.mean_watts,
            other_processes=[
                f"{other.pid} {other.name or '-'} {'-' if other.used_bytes is None else other.used_bytes}"
                for other in self.others
            ],
        )
