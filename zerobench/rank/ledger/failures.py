"""Describes the failure of this rank from the exception's type and the allocator's own figures."""

from __future__ import annotations

import os
import re
import traceback
import warnings

import torch

from zerobench.common.redaction import redact_text, secret_values
from zerobench.common.vocabulary import Phase, Status
from zerobench.config.deepspeed.kernels import architectures_unread
from zerobench.rank.ledger.device import Device
from zerobench.rank.ledger.recorder import Marks
from zerobench.records.records import Failure, HostStanding

_ADVICE = " If reserved but unallocated"
"""Begins torch's advice after the figures of a refusal (CUDACachingAllocator.cpp)."""
_CUDA_OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation (driver_types.h)."""
_LONGEST = 400
"""Most characters of an exception's message."""


def describe(
    error: BaseException, marks: Marks, rank: int, device: Device | None, *, between_calls: bool = False
) -> tuple[Status, Failure]:
    """Status and failure for an exception that ended the rank; `between_calls`: outside the phases of `marks`."""
    status = Status.CRASH
    requested = free = standing = None
    if isinstance(error, torch.OutOfMemoryError):
        status = Status.OUT_OF_DEVICE_MEMORY
        refusal = device.last_refusal if device is not None else {}
        requested, free = refusal.get("bytes_asked"), refusal.get("bytes_free")
        standing = device.last_standing if device is not None else None
    # When page-locked memory runs out (cudaHostAlloc), CUDA uses the error code of a full device; torch's
    # OutOfMemoryError is for the device only.
    elif isinstance(error, MemoryError) or (
        isinstance(error, torch.AcceleratorError) and getattr(error, "error_code", None) == _CUDA_OUT_OF_MEMORY
    ):
        status = Status.OUT_OF_HOST_MEMORY
    elif (refused := cpu_allocator_refusal(error)) is not None:
        status, requested = Status.OUT_OF_HOST_MEMORY, refused
    # First of all: it frees the reserved memory that the rest needs.
    on_host = _host_standing(device) if status is Status.OUT_OF_HOST_MEMORY else None
    secrets = secret_values(os.environ)
    words = architectures_unread(error, os.environ) or str(error)
    first_line = redact_text((words.strip().splitlines() or [""])[0], secrets)
    first_line = first_line.partition(_ADVICE)[0][:_LONGEST]
    evidence = "the allocator's exception" if requested is not None else None
    what = kind = type(error).__name__
    if is_compilers(error):
        evidence, what = "torch.compile failed with the compiler's exception", f"torch.compile failed ({kind})"
    return status, Failure(
        phase=None if between_calls else marks.phase,
        step_index=marks.step_index,
        rank=rank,
        message=f"{what} {_instant(marks, between_calls=between_calls)}: {first_line}",
        exception=kind,
        traceback=redact_text("".join(traceback.format_exception(error)), secrets)[-20_000:],
        bytes_asked=requested,
        bytes_free=free,
        standing=standing,
        host_standing=on_host,
        evidence=evidence,
    )


def _host_standing(device: Device | None) -> HostStanding | None:
    """Use of host memory at the failure: the exception still holds its frames, and they hold their tensors."""
    try:
        return None if device is None else device.stood_on_host()
    except Exception as error:  # noqa: BLE001 -- no error here may hide the one that ended the rank
        warnings.warn(f"zerobench could not list what is allocated: {error}", stacklevel=2)
        return None


def is_compilers(error: BaseException) -> bool:
    """True if torch.compile itself failed: dynamo (torch/_dynamo/exc.py) or inductor (torch/_inductor/exc.py)."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def _instant(marks: Marks, *, between_calls: bool) -> str:
    phase = "the update" if marks.phase is Phase.STEP else str(marks.phase)
    begun = f"{phase} of step {marks.step_index + 1}" if marks.step_index >= 0 else phase
    return f"outside of the engine's calls, after {begun}" if between_calls else f"in {begun}"


def cpu_allocator_refusal(error: BaseException) -> int | None:
    """Requested bytes if torch's CPU allocator refused (c10/core/impl/alloc_cpu.cpp throws a plain RuntimeError)."""
    if type(error) is not RuntimeError:
        return None
    match = re.search(r"DefaultCPUAllocator: .{0,200}?you tried to allocate (\d+) bytes", str(error))
    return int(match.group(1)) if match else None
