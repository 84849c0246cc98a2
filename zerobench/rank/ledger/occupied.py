"""The most that torch's CUDA allocator held in segments with anything in them, by its own history of a phase.

Before an allocation fails, the allocator gives back every segment in which nothing lies. Its counters do not tell those
apart; its history does: which block lay in which segment, at every instant, walked backwards from the phase's end.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any

_FREE_BLOCK = "inactive"


def peak_occupied(
    trace: Sequence[Mapping[str, Any]], segments: Sequence[Mapping[str, Any]], stats: Mapping[str, int]
) -> int:
    """Bytes of those segments when they were most. `trace` is the phase's, `segments` stand at its end.

    At most so much where the history does not reach back to the phase's start (which shows in its peak), and where
    segments are expandable, of which single pages are given back.
    """
    reserved = stats["reserved_bytes.all.peak"]
    if any(segment.get("is_expandable") for segment in segments):
        return reserved  # torch counts nothing of them as inactive
    walked = _Walk(segments)
    for entry in reversed(trace):
        walked.undo(entry)
    if walked.requested_peak == stats["requested_bytes.all.peak"]:
        return walked.peak
    return min(reserved, stats["allocated_bytes.all.peak"] + stats["inactive_split_bytes.all.peak"])


class _Walk:
    """The segments at one instant, which goes backwards."""

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
        """Go to the instant before it."""
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
