"""Snapshot of torch's CUDA allocator for one device, and what it reveals beyond the allocator's own counters.

- The most bytes held in occupied segments. Before an allocation fails, the allocator releases every empty segment. Its
  counters do not tell empty segments from occupied ones; its history does, walked backwards from the end of a phase.
- The matrix library's workspaces, recognised by their sizes. torch takes one from its caching allocator for each stream
  and thread that multiplies, at the first product, and keeps it (aten/src/ATen/cuda/CublasHandlePool.cpp). No operation
  returns it, so no tensor is ever seen to own it.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

_HOPPER_BYTES = 4096 * 8 * 1024
_DEFAULT_BYTES = (4096 * 2 + 16 * 8) * 1024
_LARGE_CAPABILITIES = (9, 10, 12)
_CONFIGURED = re.compile(r":(\d+):(\d+)")


def workspace_sizes(device: torch.device) -> frozenset[int]:
    """Sizes in bytes of cuBLAS's and cuBLASLt's workspaces on a CUDA device, from torch or by torch's rules."""
    bindings: Any = torch._C
    if hasattr(bindings, "_cuda_getCublasWorkspaceSize"):  # since torch 2.12
        sizes = {bindings._cuda_getCublasWorkspaceSize(), bindings._cuda_getCublasLtWorkspaceSize()}
    else:
        sizes = {chosen_size(torch.cuda.get_device_capability(device)[0], os.environ)}
    return frozenset(int(size) for size in sizes if size)


def chosen_size(capability: int, environ: Mapping[str, str]) -> int:
    """Workspace bytes for CUBLAS_WORKSPACE_CONFIG and the major compute capability.

    Follows parseChosenWorkspaceSize (CublasHandlePool.cpp): `:4096:2:16:8` is two buffers of 4096 KiB and eight of 16.
    """
    pairs = _CONFIGURED.findall(environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(kib) * int(count) for kib, count in pairs) * 1024
    return _HOPPER_BYTES if capability in _LARGE_CAPABILITIES else _DEFAULT_BYTES


_FREE_BLOCK = "inactive"


def peak_occupied(
    trace: Sequence[Mapping[str, Any]], segments: Sequence[Mapping[str, Any]], stats: Mapping[str, int]
) -> int:
    """Return the most bytes of occupied segments in a phase, from its `trace` and the `segments` at its end.

    The result is an upper bound if the history does not reach back to the start of the phase (its peak shows that), and
    for expandable segments, which are released page by page.
    """
    reserved = stats["reserved_bytes.all.peak"]
    if any(segment.get("is_expandable") for segment in segments):
        return reserved  # torch counts no part of expandable segments as inactive
    walked = _Walk(segments)
    for entry in reversed(trace):
        walked.undo(entry)
    if walked.requested_peak == stats["requested_bytes.all.peak"]:
        return walked.peak
    return min(reserved, stats["allocated_bytes.all.peak"] + stats["inactive_split_bytes.all.peak"])


class _Walk:
    """Occupied segments at one instant; `undo` moves the instant backwards."""

    def __init__(self, segments: Sequence[Mapping[str, Any]]) -> None:
        self._starts: list[int] = sorted(segment["address"] for segment in segments)
        self._bytes = {segment["address"]: segment["total_size"] for segment in segments}
        self._blocks = dict.fromkeys(self._starts, 0)
        self._occupied = self.peak = self._requested = self.requested_peak = 0
        for segment in segments:
            for block in segment["blocks"]:
                if block["state"] != _FREE_BLOCK:
                    self._add(segment["address"], block["requested_size"])

    def undo(self, entry: Mapping[str, Any]) -> None:
        """Go to the instant before `entry`."""
        action = entry["action"]
        if action == "free_completed":
            self._add(self._segment_of(entry["addr"]), entry["size"])
        elif action == "alloc":
            segment = self._segment_of(entry["addr"])
            self._requested -= entry["size"]
            self._blocks[segment] -= 1
            if not self._blocks[segment]:
                self._occupied -= self._bytes[segment]
        elif action == "segment_alloc":
            self._starts.remove(entry["addr"])
        elif action == "segment_free":
            insort(self._starts, entry["addr"])
            self._bytes[entry["addr"]], self._blocks[entry["addr"]] = entry["size"], 0

    def _add(self, segment: int, requested: int) -> None:
        self._requested += requested
        self.requested_peak = max(self.requested_peak, self._requested)
        if not self._blocks[segment]:
            self._occupied += self._bytes[segment]
            self.peak = max(self.peak, self._occupied)
        self._blocks[segment] += 1

    def _segment_of(self, address: int) -> int:
        return self._starts[bisect_right(self._starts, address) - 1]


class AllocatorSnapshot(NamedTuple):
    """The device's part of torch.cuda.memory._snapshot()."""

    trace: list[dict[str, Any]]
    """Allocator actions since the history began, oldest first."""
    segments: list[dict[str, Any]]


def snapshot_of(device: torch.device | int) -> AllocatorSnapshot:
    """Take the snapshot of `device`; without an index, of the current one."""
    index, whole = index_of(device), torch.cuda.memory._snapshot(device)
    segments = [segment for segment in whole["segments"] if segment["device"] == index]
    return AllocatorSnapshot(whole["device_traces"][index], segments)


def index_of(device: torch.device | int) -> int:
    """Return the index of `device`; without one, the current device's."""
    if isinstance(device, int):
        return device
    return torch.cuda.current_device() if device.index is None else device.index
