"""Lists the NVIDIA driver's devices and reads memory, power and energy of one device; failures become reasons.

Devices are found by UUID, then by PCI bus id: NVML's indices are not CUDA's (CUDA_VISIBLE_DEVICES, fastest first).
Readings never raise: a missing figure is None, and the reader has the reason.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from zerobench.rank.nvml.nvml_driver import (
    NOT_AVAILABLE,
    SUCCESS,
    BoundCall,
    NvmlFault,
    driver,
    known,
    or_none,
    text,
    unavailable_reason,
)

__all__ = [
    "DeviceInfo",
    "DeviceListing",
    "DeviceReader",
    "Reading",
    "list_devices",
    "unavailable_reason",
    "unix_time_s",
]

_NUMBERS = {
    "power": ("nvmlDeviceGetPowerUsage", ctypes.c_uint),
    "energy": ("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong),
}
"""The driver's functions and the C types that they fill (nvml.h)."""

# One offset for the whole process, so that times never step back when the wall clock is set.
UNIX_MINUS_MONOTONIC_S = time.time() - time.monotonic()


def unix_time_s() -> float:
    """Unix time in seconds that never steps back within this process."""
    return time.monotonic() + UNIX_MINUS_MONOTONIC_S


@dataclass(frozen=True)
class DeviceInfo:
    """A GPU, or a MIG device on one."""

    index: int
    """NVML's index of the GPU; CUDA's order may differ."""
    uuid: str
    name: str
    total_bytes: int | None
    pci_bus_id: str | None
    mig_uuids: tuple[str, ...] = ()
    """The MIG devices on this GPU."""
    is_mig: bool = False


@dataclass(frozen=True)
class DeviceListing:
    """The GPUs that the driver shows, or the reason why it shows none."""

    devices: list[DeviceInfo] = field(default_factory=list)
    reason: str | None = None
    """Reason for an empty list."""
    faults: list[str] = field(default_factory=list)
    """GPUs that failed to answer, each with the reason."""
    driver_version: str | None = None
    cuda_version: str | None = None
    """Newest CUDA version that the driver supports, for example `13.0`."""


class Reading(NamedTuple):
    """Driver figures of one device at one time; None if unavailable."""

    t_s: float
    """Unix time."""
    used_bytes: int | None
    """On the whole device; with memory API v1 it includes memory reserved by the driver."""
    reserved_bytes: int | None
    power_watts: float | None
    energy_joules: float | None
    """The driver's counter since it was loaded: only differences are meaningful."""


@dataclass(frozen=True)
class DeviceProcess:
    """A process that the driver finds on a device."""

    pid: int
    """Process id of the driver: inside a container, the host's number."""
    name: str | None
    used_bytes: int | None


def list_devices() -> DeviceListing:
    """List the machine's GPUs with their MIG devices; a failure becomes a reason, not an error."""
    try:
        nvml = driver()
        count = nvml.call("nvmlDeviceGetCount")
    except NvmlFault as fault:
        return DeviceListing(reason=str(fault))
    devices, faults = [], []
    for index in range(count):
        try:
            devices.append(_describe(nvml.call("nvmlDeviceGetHandleByIndex", index)))
        except NvmlFault as fault:
            faults.append(f"GPU {index}: {fault}")
    reason = None if devices else "; ".join(faults) or "the NVIDIA driver shows no GPU"
    return DeviceListing(devices, reason, faults, driver_version(), _cuda_version())


def driver_version() -> str | None:
    """The loaded driver's version, for example `580.159.03`."""
    return or_none(lambda: text(driver().call("nvmlSystemGetDriverVersion")))


def _cuda_version() -> str | None:
    number = or_none(lambda: int(driver().call("nvmlSystemGetCudaDriverVersion_v2")))
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _describe(handle: Any) -> DeviceInfo:
    """Describe the device behind `handle`.

    Raises:
        NvmlFault: the driver does not identify the device.

    """
    nvml = driver()
    is_mig = bool(or_none(lambda: nvml.call("nvmlDeviceIsMigDeviceHandle", handle)))
    board = nvml.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if is_mig else handle
    return DeviceInfo(
        index=nvml.call("nvmlDeviceGetIndex", board),
        uuid=text(nvml.call("nvmlDeviceGetUUID", handle)),
        name=text(nvml.call("nvmlDeviceGetName", handle)),
        total_bytes=or_none(lambda: nvml.memory(handle)[0]),
        pci_bus_id=or_none(lambda: text(nvml.call("nvmlDeviceGetPciInfo", board).busId)),
        mig_uuids=() if is_mig else _mig_uuids(handle),
        is_mig=is_mig,
    )


def _mig_uuids(handle: Any) -> tuple[str, ...]:
    """UUIDs of the MIG devices on a GPU; slots between them may be empty."""
    nvml = driver()
    uuids = []
    for slot in range(or_none(lambda: int(nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle))) or 0):
        try:
            part = nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
            uuids.append(text(nvml.call("nvmlDeviceGetUUID", part)))
        except NvmlFault:
            continue
    return tuple(uuids)


def _find(uuid: str | None, pci_bus_id: str | None) -> Any:
    """Find the driver's handle of the device with this UUID, or else at this PCI bus id.

    Raises:
        NvmlFault: there is none, or no driver.

    """
    tries = [("nvmlDeviceGetHandleByUUID", form) for form in uuid_forms(uuid)]
    if pci_bus_id is not None:
        tries.append(("nvmlDeviceGetHandleByPciBusId", pci_bus_id))
    fault = NvmlFault("no device given")
    for name, key in tries:
        try:
            return driver().call(name, key)
        except NvmlFault as refused:
            fault = refused
            if refused.lost:
                break
    raise fault


def uuid_forms(uuid: str | None) -> list[str]:
    """Names under which the driver may know `uuid`, the likeliest first.

    torch reports a bare UUID for GPUs and MIG devices; drivers before R470 name MIG devices `MIG-GPU-.../gi/ci`.
    """
    if not uuid:
        return []
    if uuid.startswith("MIG-GPU-"):
        return [uuid]
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    forms = [f"GPU-{bare}", f"MIG-{bare}"]
    return forms[::-1] if uuid.startswith("MIG-") else forms


class DeviceReader:
    """Reads one device repeatedly, without ever raising.

    Once the driver has answered, its functions are called as bound ones; if one of them fails, the Python binding is
    called again for the reason.
    """

    def __init__(self, handle: Any, device: DeviceInfo | None, fault: str | None) -> None:
        self._handle = handle
        self.device = device
        """None if the device could not be opened."""
        self.fault = fault
        """Reason why the device could not be opened, or why the last reading has no memory."""
        self.lost = False
        """True if the device fell off the bus: it will not answer any more."""
        whole_gpu = "the driver measures whole GPUs only"
        self.absent: dict[str, str] = {"power": whole_gpu, "energy": whole_gpu} if device and device.is_mig else {}
        """Figures that this device does not report (`power`, `energy` or `processes`), with the reason."""
        self.memory_call: BoundCall | None = None
        """Fast path for a sampling loop: fills `used` and `reserved`; None unless the last reading succeeded."""
        self._number_calls: dict[str, BoundCall | None] = {}

    @classmethod
    def open(cls, uuid: str | None, pci_bus_id: str | None = None) -> DeviceReader:
        """Open the device with this UUID, or else at this PCI bus id.

        `uuid` may be bare, as `str(torch.cuda.get_device_properties(i).uuid)` is, or begin with `GPU-` or `MIG-`;
        `pci_bus_id` is domain:bus:device.function in hexadecimal. If neither finds a device, the reader has a `fault`
        and reads None.
        """
        try:
            handle = _find(uuid, pci_bus_id)
            return cls(handle, _describe(handle), None)
        except NvmlFault as fault:
            return cls(None, None, f"{uuid or pci_bus_id}: {fault}")

    @property
    def memory_api(self) -> str | None:
        """`v2` (reserved memory is separate) or `v1` (it is part of used); None before the first answer."""
        return None if self.device is None else driver().memory_api

    def read(self, *, power: bool = True) -> Reading:
        """Read the device now; power and energy only with `power`."""
        t_s = unix_time_s()
        used, reserved = self._memory()
        if not power:
            return Reading(t_s, used, reserved, None, None)
        watts, joules = _thousandth(self._number("power")), _thousandth(self._number("energy"))
        return Reading(t_s, used, reserved, watts, joules)

    def process_bytes(self, pid: int) -> int | None:
        """Bytes of process `pid` on the device; None if the driver does not list it.

        Inside a container the driver lists the host's process ids, so `pid` is not found. Takes milliseconds.
        """
        return None if self.device is None else self._processes().get(pid)

    def processes(self) -> list[DeviceProcess]:
        """Processes on the device now, with names if they are visible. Takes milliseconds: never poll it."""
        if self.device is None:
            return []
        return [DeviceProcess(pid, _process_name(pid), used) for pid, used in self._processes().items()]

    def _memory(self) -> tuple[int | None, int | None]:
        """Used and reserved bytes."""
        call = self.memory_call
        if call is not None and call.ask() == SUCCESS and call.answer.used != NOT_AVAILABLE:
            return call.answer.used, known(call.answer.reserved)
        return self._memory_or_fault()

    def _memory_or_fault(self) -> tuple[int | None, int | None]:
        self.memory_call = None
        if self.device is None or self.lost:
            return None, None
        try:
            _, used, reserved = driver().memory(self._handle)
        except NvmlFault as fault:
            self.fault, self.lost = str(fault), fault.lost
            return None, None
        if used is None:
            self.fault = "the driver does not report used memory"
            return None, reserved
        self.fault = None
        self.memory_call = driver().bind_memory(self._handle)
        return used, reserved

    def _number(self, what: str) -> int | None:
        """`power` in mW or `energy` in mJ; not every device reports them."""
        call = self._number_calls.get(what)
        if call is not None and not self.lost and call.ask() == SUCCESS:
            return known(call.answer.value)
        return self._number_or_absent(what)

    def _number_or_absent(self, what: str) -> int | None:
        """Read through the binding; a device that refuses is not asked again."""
        self._number_calls[what] = None
        if self.device is None or self.lost or what in self.absent:
            return None
        name, answer_type = _NUMBERS[what]
        try:
            number = known(driver().call(name, self._handle))
        except NvmlFault as fault:
            if not fault.lost:
                self.absent[what] = str(fault)
            return None
        self._number_calls[what] = driver().bind(name, self._handle, answer_type())
        return number

    def _processes(self) -> dict[int, int | None]:
        try:
            return driver().processes(self._handle)
        except NvmlFault as fault:
            self.absent["processes"] = str(fault)
            return {}


def _thousandth(number: int | None) -> float | None:
    return None if number is None else number / 1000


def _process_name(pid: int) -> str | None:
    """Name of a process; None if it is not visible, as from inside a container."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
