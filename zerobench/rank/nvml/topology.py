"""Connections between the GPUs of a node, NVLink or PCIe, pair by pair, in the terms of `nvidia-smi topo -m`."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

from zerobench.rank.nvml.nvml import DeviceInfo
from zerobench.rank.nvml.nvml_driver import NvmlFault, driver, text

# nvml.h, nvmlGpuTopologyLevel_t
_PCIE = {0: "same board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MAX_LINKS = 18
"""NVML_NVLINK_MAX_LINKS."""
_TO_SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""
_SWITCH = "nvswitch"


def gpu_topology(devices: list[DeviceInfo]) -> list[dict[str, Any]]:
    """Each pair of `devices` by UUID, with its PCIe path and its NVLinks; None if the driver does not report one.

    `pcie` is PIX (one bridge), PXB (several), PHB (host bridge), NODE (one NUMA node) or SYS (across them); `nvlinks`
    counts active links; `through` is `nvswitch` if they end there, and `nvlinks` then the fewer of the two GPUs' links.
    """
    links = {device.uuid: _links(device.uuid) for device in devices}
    return [
        {"gpus": [gpu.uuid, other.uuid], "pcie": _pcie(gpu.uuid, other.uuid)} | _nvlinks(gpu, other, links)
        for gpu, other in combinations(devices, 2)
    ]


def _nvlinks(device: DeviceInfo, other: DeviceInfo, links: dict[str, Counter[str] | None]) -> dict[str, Any]:
    mine, theirs = links[device.uuid], links[other.uuid]
    if mine is None or theirs is None:
        return {"nvlinks": None, "through": None}
    if mine[_SWITCH] and theirs[_SWITCH]:
        return {"nvlinks": min(mine[_SWITCH], theirs[_SWITCH]), "through": _SWITCH}
    return {"nvlinks": mine[(other.pci_bus_id or "").lower()], "through": None}


def _links(uuid: str) -> Counter[str] | None:
    """Active NVLinks of a GPU by far end, a PCI bus id or a switch; None if the driver does not report them."""
    ends: Counter[str] = Counter()
    try:
        handle = driver().call("nvmlDeviceGetHandleByUUID", uuid)
        for link in range(_MAX_LINKS):
            if driver().call("nvmlDeviceGetNvLinkState", handle, link):
                ends[_end(handle, link)] += 1
    except NvmlFault as fault:
        # A GPU with fewer links answers "not supported" or "invalid argument" at the first one that it lacks.
        return ends if fault.code in (2, 3) else None
    return ends


def _end(handle: Any, link: int) -> str:
    if driver().call("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _TO_SWITCH:
        return _SWITCH
    return text(driver().call("nvmlDeviceGetNvLinkRemotePciInfo", handle, link).busId).lower()


def _pcie(uuid_a: str, other: str) -> str | None:
    nvml = driver()
    try:
        handles = [nvml.call("nvmlDeviceGetHandleByUUID", uuid) for uuid in (uuid_a, other)]
        level = nvml.call("nvmlDeviceGetTopologyCommonAncestor", *handles)
    except NvmlFault:
        return None
    return _PCIE.get(level, str(level))
