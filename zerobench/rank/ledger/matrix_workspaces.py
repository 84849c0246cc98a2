"""The workspaces that torch gives the matrix library: how large they are, by which they are known.

torch takes one from its caching allocator for each thread that multiplies and each stream, at the first product, and
keeps it (aten/src/ATen/cuda/CublasHandlePool.cpp). No operation gives it out, so no tensor is ever seen to own it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import torch

_HOPPER_BYTES = 4096 * 8 * 1024
_DEFAULT_BYTES = (4096 * 2 + 16 * 8) * 1024
_LARGE_CAPABILITIES = (9, 10, 12)
_CONFIGURED = re.compile(r":(\d+):(\d+)")


def workspace_sizes(device: torch.device) -> frozenset[int]:
    """Sizes in bytes of cuBLAS's and cuBLASLt's workspaces on a CUDA device: torch's word, else by its rules."""
    bindings: Any = torch._C
    if hasattr(bindings, "_cuda_getCublasWorkspaceSize"):  # since torch 2.12
        sizes = {bindings._cuda_getCublasWorkspaceSize(), bindings._cuda_getCublasLtWorkspaceSize()}
    else:
        sizes = {chosen_size(torch.cuda.get_device_capability(device)[0], os.environ)}
    return frozenset(int(size) for size in sizes if size)


def chosen_size(capability: int, environ: Mapping[str, str]) -> int:
    """What parseChosenWorkspaceSize (CublasHandlePool.cpp) makes of CUBLAS_WORKSPACE_CONFIG and the compute capability.

    `:4096:2:16:8` is two buffers of 4096 KiB and eight of 16 KiB.
    """
    pairs = _CONFIGURED.findall(environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(kib) * int(count) for kib, count in pairs) * 1024
    return _HOPPER_BYTES if capability in _LARGE_CAPABILITIES else _DEFAULT_BYTES
