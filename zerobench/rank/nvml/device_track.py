"""What the sampler keeps of one device while it samples: the peak, the largest gap, and the energy.

A device is read in one thread (`sample`), as often as asked and with as little work as can be; what a reading means
is counted later in another (`note`), many at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zerobench.rank.nvml.nvml import DeviceInfo, DeviceProcess, DeviceReader, Reading, unix_time_s
from zerobench.rank.nvml.nvml_driver import NOT_AVAILABLE
from zerobench.records.nvml_samples import Values, row
from zerobench.records.records import NvmlDevice

RETRY_S = 1.0
"""A device that failed without being lost is asked again after this long."""


@dataclass
class EnergyCount:
    """Energy since the first reading: the driver's counter, or power over time where there is no counter."""

    _first: Reading | None = None
    _last: Reading | None = None
    _counted: tuple[float, float] | None = None
    """The counter's first and last value."""
    _integrated_joules: float = 0.0

    def add(self, reading: Reading) -> None:
        """Take a reading that has power or energy."""
        if reading.energy_joules is not None:
            begin = self._counted[0] if self._counted else reading.energy_joules
            self._counted = (begin, reading.energy_joules)
        if self._last and self._last.power_watts is not None and reading.power_watts is not None:
            seconds = reading.t_s - self._last.t_s
            self._integrated_joules += seconds * (self._last.power_watts + reading.power_watts) / 2
        self._first, self._last = self._first or reading, reading

    @property
    def joules(self) -> float | None:
        """None before there are two readings."""
        if self._last is self._first:
            return None
        return self._counted[1] - self._counted[0] if self._counted else self._integrated_joules

    @property
    def mean_watts(self) -> float | None:
        """Energy over the time that it was taken in."""
        if self.joules is None or self._first is None or self._last is None:
            return None
        return self.joules / (self._last.t_s - self._first.t_s)


@dataclass
class DeviceTrack:
    """One device, from its baseline on."""

    reader: DeviceReader
    device: DeviceInfo
    others: list[DeviceProcess]
    """Processes found on the device before the trial touched it."""
    faults: list[str]
    """Where to note what goes wrong, in the order it comes."""
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
        """Count a reading, in the order they were taken; a line for the file, or None where it told nothing.

        Reserved bytes may be as the driver gave them.
        """
        t_s, used_bytes, reserved_bytes, watts, joules = values
        if watts is not None or joules is not None:
            self._energy.add(Reading(*values))
        elif used_bytes is None:
            return None
        if reserved_bytes == NOT_AVAILABLE:
            reserved_bytes = None
        if used_bytes is not None:
            self._note_memory(t_s, used_bytes, reserved_bytes)
        self.num_samples += 1
        return row(self.device.uuid, (t_s, used_bytes, reserved_bytes, watts, joules))

    def _note_memory(self, t_s: float, used_bytes: int, reserved_bytes: int | None) -> None:
        if self._last_s is None or self._peak_bytes is None:
            self._baseline_bytes = self._peak_bytes = used_bytes
        else:
            self._peak_bytes = max(self._peak_bytes, used_bytes)
            self.largest_gap_s = max(self.largest_gap_s or 0.0, t_s - self._last_s)
        self._last_s, self._reserved_bytes = t_s, reserved_bytes

    def _note_fault(self, t_s: float) -> None:
        """The same fault is noted once; a device with a fault rests before it is asked again."""
        fault = self.reader.fault
        if fault and fault != self._known_fault:
            self.faults.append(f"{self.device.uuid}: {fault} at {t_s:.3f}")
        self._known_fault = fault
        self._retry_at_s = t_s + RETRY_S if fault else 0.0

    def record(self) -> NvmlDevice:
        """The device as the summary shows it."""
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
