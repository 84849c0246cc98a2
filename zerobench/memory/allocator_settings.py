"""What a user asks of torch's caching allocator by PYTORCH_ALLOC_CONF, for the model of it that predictions use.

torch reads PYTORCH_ALLOC_CONF, and the older PYTORCH_CUDA_ALLOC_CONF where that is not set
(c10/core/AllocatorConfig.cpp). Measured and emulated ranks have torch read it; the model must obey it too, or say
what it leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from zerobench.environments import version_of
from zerobench.memory.caching_allocator import CachingAllocator
from zerobench.memory.expandable_segments import ExpandableAllocator
from zerobench.records import DeviceMemory, Phase, StepKind

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXPANDABLE = "expandable_segments"
_SETTING = re.compile(r"\s*([^:,\[\]]+):(\[[^\]]*\]|[^,]*)")
_EARLIEST_FIRST = 2, 12
"""The release from which torch takes the block of the earliest segment."""
_OF_HOST = ("pinned_", "use_background_threads")
"""What settings of the host's allocator begin with: the device's is the same with any of them."""

AllocatorModel = CachingAllocator | ExpandableAllocator


def asked_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings by name, as written; none where neither variable is set."""
    text = next((environ[name] for name in VARIABLES if environ.get(name)), "")
    return {name.strip(): value.strip() for name, value in _SETTING.findall(text)}


def is_expandable(environ: Mapping[str, str]) -> bool:
    """Whether segments are to be expandable."""
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
    """Whether that version of torch takes, of free blocks of equal size, the one at the lowest address, where an H100's
    driver puts the latest segment; as the newest does where there is none.
    """
    release = re.match(r"(\d+)\.(\d+)", torch or "")
    return release is not None and tuple(map(int, release.groups())) < _EARLIEST_FIRST


def settings_notes(environ: Mapping[str, str]) -> list[str]:
    """What a reader of a prediction must know of the settings: what is modelled of them, and what is not."""
    asked = asked_settings(environ)
    notes = [f"torch's allocator is modelled with {_EXPANDABLE}:True, as asked"] if is_expandable(environ) else []
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


def device_row(allocator: AllocatorModel, step: StepKind, phase: Phase) -> DeviceMemory:
    """What the model says at the end of a phase, as a GPU's allocator would."""
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
