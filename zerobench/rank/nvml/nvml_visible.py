"""Selects the devices that CUDA_VISIBLE_DEVICES leaves to a trial, and so to its sampler.

DeepSpeed's launcher sets the variable for the ranks of each node, on CPU runs too (deepspeed/launcher/launch.py, main).
An extra device costs a little time, a missing one loses a peak: if CUDA's names are ambiguous, no device is left out.
`zerobench.launch.machine.this_machine.visible_devices` counts GPUs by the same rules to lay out a sweep; this module is
for the sampler's process, which starts without the imports of that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zerobench.rank.nvml.nvml import DeviceInfo, DeviceListing

VARIABLE = "CUDA_VISIBLE_DEVICES"
_LEGACY_MIG = "MIG-GPU-"
"""Begins the name of a MIG device in drivers before R470, which later ones still accept: `MIG-GPU-.../gi/ci`."""


class Choice(NamedTuple):
    """UUIDs of devices, in the driver's order; a partitioned GPU is represented by its MIG devices."""

    sampled: list[str]
    not_sampled: list[str]


def choose_visible(listing: DeviceListing, environ: Mapping[str, str]) -> Choice:
    """Split the devices of `listing` by CUDA_VISIBLE_DEVICES in `environ`; if it is not set, all are sampled.

    It names GPUs by index, GPUs and MIG devices by UUID or a prefix of it (CUDA C++ Programming Guide, "CUDA
    Environment Variables"; NVIDIA Multi-Instance GPU User Guide, "CUDA Visible Devices").
    """
    everything = [uuid for gpu in listing.devices for uuid in _units(gpu)]
    if VARIABLE not in environ or not _is_clear(listing, environ):
        return Choice(everything, [])
    chosen = _chosen(listing.devices, _names(environ))
    return Choice([uuid for uuid in everything if uuid in chosen], [uuid for uuid in everything if uuid not in chosen])


def _units(gpu: DeviceInfo) -> tuple[str, ...]:
    """UUIDs on which a trial can run: the MIG devices of a GPU, or the GPU itself."""
    return gpu.mig_uuids or (gpu.uuid,)


def _names(environ: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in environ.get(VARIABLE, "").split(",")]


def _chosen(gpus: list[DeviceInfo], names: list[str]) -> set[str]:
    """UUIDs of the named devices, up to the first unknown or repeated name."""
    chosen: set[str] = set()
    for name in names:
        units = _find_units(gpus, name)
        if not units or chosen.issuperset(units):
            break
        chosen.update(units)
    return chosen


def _find_units(gpus: list[DeviceInfo], name: str) -> tuple[str, ...]:
    """Units of the device with CUDA's `name`; empty for an unknown name."""
    if name.isdecimal():
        return _units(gpus[int(name)]) if int(name) < len(gpus) else ()
    parts = (uuid for gpu in gpus for uuid in gpu.mig_uuids if name and uuid.startswith(name))
    whole = (_units(gpu) for gpu in gpus if name and gpu.uuid.startswith(name))
    part = next(parts, None)
    return next(whole, ()) if part is None else (part,)


def _is_clear(listing: DeviceListing, environ: Mapping[str, str]) -> bool:
    """True if CUDA's names are unambiguous."""
    names = _names(environ)
    listed = {uuid for gpu in listing.devices for uuid in gpu.mig_uuids}
    if any(name.startswith(_LEGACY_MIG) and name not in listed for name in names):
        return False
    return not any(map(str.isdecimal, names)) or _indices_are_clear(listing, environ)


def _indices_are_clear(listing: DeviceListing, environ: Mapping[str, str]) -> bool:
    """True if CUDA numbers the GPUs as the driver does, by PCI bus.

    CUDA puts the fastest first unless CUDA_DEVICE_ORDER is PCI_BUS_ID, which only matters for unlike GPUs. If a GPU is
    partitioned, CUDA counts MIG devices and skips whole GPUs; if one fails to answer, CUDA may skip it.
    """
    alike = len({gpu.name for gpu in listing.devices}) <= 1 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return alike and not listing.faults and not any(gpu.mig_uuids for gpu in listing.devices)
