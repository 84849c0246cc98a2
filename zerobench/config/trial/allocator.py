"""What a user asks of torch's allocators by PYTORCH_ALLOC_CONF, of device and host.

torch reads PYTORCH_ALLOC_CONF, and the older PYTORCH_CUDA_ALLOC_CONF where that is not set
(c10/core/AllocatorConfig.cpp). Measured and emulated ranks have torch read it; models of it must obey it too, or say
what they leave out.
"""

import re
from collections.abc import Mapping

VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
ROUNDING_LIMITS = ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb")
"""Above either one page-locked memory is taken as it is asked (torch 2.13; older ones know neither and refuse them)."""
_SETTING = re.compile(r"(?<![^:,\[\]])([^:,\[\]]++):(\[[^\]]*+\]|[^,]*+)")


def asked_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings by name, as written; none where neither variable is set."""
    text = next((environ[name] for name in VARIABLES if environ.get(name)), "")
    return {name.strip(): value.strip() for name, value in _SETTING.findall(text)}


def most_rounded_bytes(environ: Mapping[str, str]) -> int | None:
    """The largest page-locked tensor that is rounded up; None: all are."""
    asked = asked_settings(environ)
    limits = [int(asked[name]) * 2**20 for name in ROUNDING_LIMITS if asked.get(name, "").isdecimal()]
    return min(limits, default=None)


def page_locked_bytes(nbytes: int, most_rounded: int | None = None) -> int:
    """What torch takes of the host for a page-locked tensor of `nbytes`: the next power of two, up to `most_rounded`.

    at::CachingHostAllocatorImpl::allocate (aten/src/ATen/core/CachingHostAllocator.h, torch 2.11 to 2.13) rounds by
    PowerOf2Ceil. Nothing is taken for 0 bytes. Freed blocks stay page-locked for the next request of the same size.
    """
    if nbytes <= 0:
        return 0
    return nbytes if most_rounded is not None and nbytes > most_rounded else 1 << (nbytes - 1).bit_length()
