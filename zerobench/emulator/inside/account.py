"""Counters of the emulated device besides CUDA and NVML, read in the process that owns the memory."""

from __future__ import annotations

import ctypes
from functools import cache

from zerobench.emulator.build import CORE
from zerobench.records.records import ContextMemory

_COUNTS = ("zb_managed_bytes", "zb_unmanaged_bytes", "zb_context_bytes", "zb_collectives_bytes")


def managed_bytes() -> int:
    """Managed memory of this process, wherever its pages are."""
    return int(_library().zb_managed_bytes())


def unmanaged_bytes() -> int:
    """Memory of all processes on the current device, without managed memory."""
    return int(_library().zb_unmanaged_bytes())


def outside_torch() -> ContextMemory:
    """Current memory of this process's context and NCCL communicators on its device."""
    library = _library()
    return ContextMemory(
        before_bytes=0,
        context_bytes=int(library.zb_context_bytes()),
        collectives_bytes=int(library.zb_collectives_bytes()),
    )


def uncounted_workspaces() -> list[str]:
    """Uses of cuDNN by this process whose workspace size only cuDNN knows."""
    kinds = _library().zb_hidden()
    return [name for bit, name in enumerate(("convolutions", "recurrent layers")) if kinds >> bit & 1]


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(CORE)  # by its name: CUDA's stand-ins have loaded it
    for name in _COUNTS:
        getattr(library, name).restype = ctypes.c_uint64
    return library
