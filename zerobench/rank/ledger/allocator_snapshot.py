"""What torch's CUDA allocator shows of one device: the moves that it remembers, and the segments that it holds."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class AllocatorSnapshot(NamedTuple):
    """The device's part of torch.cuda.memory._snapshot()."""

    trace: list[dict[str, Any]]
    """The moves since the history began, the oldest first."""
    segments: list[dict[str, Any]]


def snapshot_of(device: torch.device | int) -> AllocatorSnapshot:
    """That of `device`, the current one where it has no index."""
    index, whole = index_of(device), torch.cuda.memory._snapshot(device)
    segments = [segment for segment in whole["segments"] if segment["device"] == index]
    return AllocatorSnapshot(whole["device_traces"][index], segments)


def index_of(device: torch.device | int) -> int:
    """Its number; of a device without one the current one's."""
    if isinstance(device, int):
        return device
    return torch.cuda.current_device() if device.index is None else device.index
