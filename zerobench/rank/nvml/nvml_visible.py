"""Which of a node's devices a trial may use, and so which its sampler watches: what CUDA_VISIBLE_DEVICES leaves.

DeepSpeed's launcher sets the variable for the ranks of each node, on CPU runs too (deepspeed/launcher/launch.py, main).
A device too many costs a little time, one too few loses a peak: where it is not clear which devices CUDA's names mean,
none is left out. `zerobench.launch.machine.this_machine.visible_devices` counts GPUs by the same rules for laying out a
sweep; the sampler's process, which this is for, starts without what that module needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zerobench.rank.nvml.nvml import DeviceInfo, DeviceListing

VARIABLE = "CUDA_VISIBLE_DEVICES"
_LEGACY_MIG = "MIG-GPU-"
"""How drivers before R470 name MIG devices, and later ones still take them: `MIG-GPU-.../gi/ci`."""


class Choice(NamedTuple):
    """UUIDs of devices, in the driver's order; of a GPU that is split, its MIG devices stand for it."""

    sampled: list[str]
    not_sampled: list[str]


def choose_visible(listing: DeviceListing, environ: Mapping[str, str]) -> Choice:
    """The devices of `listing` that CUDA_VISIBLE_DEVICES leaves in `environ`, and the others; all where it is not set.

    It names GPUs by index, GPUs and MIG devices by UUID or its beginning (CUDA C++ Programming Guide, "CUDA Environment
    Variables"; NVIDIA Multi-Instance GPU User Guide, "CUDA Visible Devices").
    """
    everything = [uuid for gpu in listing.devices for uuid in _units(gpu)]
    if VARIABLE not in environ or not _is_clear(listing, environ):
        return Choice(everything, [])
    chosen = _chosen(listing.devices, _names(environ))
    return Choice([uuid for uuid in everything if uuid in chosen], [uuid for uuid in everything if uuid not in chosen])


def _units(gpu: DeviceInfo) -> tuple[str, ...]:
    """What a trial can run on."""
    return gpu.mig_uuids or (gpu.uuid,)


def _names(environ: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in environ.get(VARIABLE, "").split(",")]


def _chosen(gpus: list[DeviceInfo], names: list[str]) -> set[str]:
    """UUIDs of the devices named, up to the first name that is none, or that is there twice."""
    chosen: set[str] = set()
    for name in names:
        units = _named(gpus, name)
        if not units or chosen.issuperset(units):
            break
        chosen.update(units)
    return chosen


def _named(gpus: list[DeviceInfo], name: str) -> tuple[str, ...]:
    """The device that CUDA calls `name`; none for a name that is no device's."""
    if name.isdecimal():
        return _units(gpus[int(name)]) if int(name) < len(gpus) else ()
    parts = (uuid for gpu in gpus for uuid in gpu.mig_uuids if name and uuid.startswith(name))
    whole = (_units(gpu) for gpu in gpus if name and gpu.uuid.startswith(name))
    part = next(parts, None)
    return next(whole, ()) if part is None else (part,)


def _is_clear(listing: DeviceListing, environ: Mapping[str, str]) -> bool:
    """Whether CUDA's names can only mean the devices that they seem to."""
    names = _names(environ)
    listed = {uuid for gpu in listing.devices for uuid in gpu.mig_uuids}
    if any(name.startswith(_LEGACY_MIG) and name not in listed for name in names):
        return False
    return not any(map(str.isdecimal, names)) or _indices_are_clear(listing, environ)


def _indices_are_clear(listing: DeviceListing, environ: Mapping[str, str]) -> bool:
    """Whether CUDA counts the GPUs as the driver does, which is by PCI bus.

    CUDA puts the fastest first unless CUDA_DEVICE_ORDER says PCI_BUS_ID, which tells only unlike GPUs apart. Where one
    is split, it counts MIG devices and leaves whole GPUs out; where one does not answer, it may count on without it.
    """
    alike = len({gpu.name for gpu in listing.devices}) <= 1 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return alike and not listing.faults and not any(gpu.mig_uuids for gpu in listing.devices)
