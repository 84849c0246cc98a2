"""Settings of torch's allocators by a user (zerobench.config.trial.allocator), for the models of them that predictions
use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache

from zerobench.common.environments import version_of
from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.trial.allocator import ROUNDING_LIMITS, asked_settings, most_rounded_bytes, page_locked_bytes
from zerobench.estimate.allocator.caching_allocator import CachingAllocator
from zerobench.estimate.allocator.expandable_segments import ExpandableAllocator
from zerobench.records.records import DeviceMemory

_EXPANDABLE = "expandable_segments"
_EARLIEST_FIRST = 2, 12
"""The release from which torch takes the block of the earliest segment."""
_RESERVED = "pinned_reserve_segment_size_mb"
_OF_HOST = ("pinned_", "use_background_threads")
"""What settings of the host's allocator begin with: the device's is the same with any of them."""

AllocatorModel = CachingAllocator | ExpandableAllocator


def is_expandable(environ: Mapping[str, str]) -> bool:
    """Return whether segments are to be expandable."""
    return asked_settings(environ).get(_EXPANDABLE) == "True"


def allocator_model(capacity_bytes: int | None, environ: Mapping[str, str]) -> AllocatorModel:
    """The model of the allocator that the installed torch would make."""
    if is_expandable(environ):
        return ExpandableAllocator(capacity_bytes)
    return CachingAllocator(capacity_bytes, latest_first=takes_latest(_torch()))


@cache
def _torch() -> str | None:
    return version_of("torch")


def takes_latest(torch: str | None) -> bool:
    """Return whether that version of torch takes, of free blocks of equal size, the one at the lowest address, where an
    H100's driver puts the latest segment; as the newest does where there is none.
    """
    release = re.match(r"(\d+)\.(\d+)", torch or "")
    return release is not None and tuple(map(int, release.groups())) < _EARLIEST_FIRST


def settings_notes(environ: Mapping[str, str]) -> list[str]:
    """Return notes on the settings of a prediction: those that are modelled, and those that are not."""
    asked = asked_settings(environ)
    expandable = [f"{_EXPANDABLE}:True"] if is_expandable(environ) else []
    obeyed = [*expandable, *(f"{name}:{asked[name]}" for name in ROUNDING_LIMITS if name in asked)]
    notes = [f"torch's allocator is modelled with {', '.join(obeyed)}, as asked"] if obeyed else []
    usual = {(_EXPANDABLE, "True"), (_EXPANDABLE, "False"), ("backend", "native")}
    left_out = [
        f"{name}:{value}"
        for name, value in asked.items()
        if (name, value) not in usual and not name.startswith(_OF_HOST)
    ]
    if left_out:
        notes.append(
            f"torch's allocator is modelled without {', '.join(left_out)}, set in this environment: "
            "reserved memory may differ (evidence emulated obeys it)"
        )
    return notes


def uncounted_host_notes(environ: Mapping[str, str]) -> list[str]:
    """That the host holds page-locked memory in which no tensor needs to lie."""
    reserved = asked_settings(environ).get(_RESERVED, "0")
    if reserved == "0":
        return []
    left_out = f"without {_RESERVED}:{reserved}, set in this environment"
    return [f"page-locked memory is counted by its tensors, {left_out}: the host may hold more"]


def page_locked_rounding(nbytes: int) -> int:
    """Bytes of torch's host allocator, as this process sets it, beyond a page-locked tensor's own."""
    return page_locked_bytes(nbytes, most_rounded_bytes(os.environ)) - nbytes


def device_row(allocator: AllocatorModel, step: StepKind, phase: Phase) -> DeviceMemory:
    """Return the model's figures at the end of a phase, as a GPU's allocator gives them."""
    return DeviceMemory(
        step=step,
        phase=phase,
        allocated_bytes=allocator.allocated_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        alloc_retries=allocator.alloc_retries,
        nvml_used_bytes=None,
        nvml_process_bytes=None,
        peak_occupied_bytes=allocator.peak_occupied_bytes,
    )
