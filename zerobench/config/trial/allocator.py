"""The user's settings of torch's allocators, for device and host, in PYTORCH_ALLOC_CONF.

torch reads PYTORCH_ALLOC_CONF, or else the older PYTORCH_CUDA_ALLOC_CONF (c10/core/AllocatorConfig.cpp). In measured
and emulated ranks torch reads it itself; models of it must follow it too, or report what they leave out.
"""

import re
from collections.abc import Mapping

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
ROUNDING_LIMITS = ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb")
"""Above either limit page-locked memory is not rounded up (torch 2.13; older versions refuse both)."""
_SETTING = re.compile(r"(?<![^:,\[\]])([^:,\[\]]++):(\[[^\]]*+\]|[^,]*+)")


def asked_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Settings by name, as written; empty if neither variable is set."""
    text = next((environ[name] for name in VARIABLES if environ.get(name)), "")
    return {name.strip(): value.strip() for name, value in _SETTING.findall(text)}


def most_rounded_bytes(environ: Mapping[str, str]) -> int | None:
    """Largest page-locked tensor that is rounded up; None: all are."""
    settings = asked_settings(environ)
    limits = [int(settings[name]) * 2**20 for name in ROUNDING_LIMITS if settings.get(name, "").isdecimal()]
    return min(limits, default=None)


def page_locked_bytes(nbytes: int, most_rounded: int | None = None) -> int:
    """Host bytes that torch allocates for a page-locked tensor of `nbytes`: the next power of two, up to
    `most_rounded`.

    at::CachingHostAllocatorImpl::allocate (aten/src/ATen/core/CachingHostAllocator.h, torch 2.11 to 2.13) rounds by
    PowerOf2Ceil. Nothing is allocated for 0 bytes. Freed blocks stay page-locked for the next request of the same size.
    """
    if nbytes <= 0:
        return 0
    return nbytes if most_rounded is not None and nbytes > most_rounded else 1 << (nbytes - 1).bit_length()
