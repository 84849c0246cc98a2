"""What went wrong in this rank, told by the exception's type and by the allocator's own figures."""

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
"""How torch goes on after the figures of a refusal (CUDACachingAllocator.cpp)."""
_CUDA_OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation (driver_types.h)."""
_LONGEST = 400
"""Characters of an exception's message."""


def describe(
    error: BaseException, marks: Marks, rank: int, device: Device | None, *, between_calls: bool = False
) -> tuple[Status, Failure]:
    """Status and failure for an exception that ended the rank; `between_calls`: outside of what `marks` bracket."""
    status = Status.CRASH
    asked = free = standing = None
    if isinstance(error, torch.OutOfMemoryError):
        status = Status.OUT_OF_DEVICE_MEMORY
        refusal = device.last_refusal if device is not None else {}
        asked, free = refusal.get("bytes_asked"), refusal.get("bytes_free")
        standing = device.last_standing if device is not None else None
    # CUDA says by the code of a full device (cudaHostAlloc) that it had no page-locked memory to give, and torch raises
    # OutOfMemoryError for the device alone.
    elif isinstance(error, MemoryError) or (
        isinstance(error, torch.AcceleratorError) and getattr(error, "error_code", None) == _CUDA_OUT_OF_MEMORY
    ):
        status = Status.OUT_OF_HOST_MEMORY
    elif (refused := cpu_allocator_refusal(error)) is not None:
        status, asked = Status.OUT_OF_HOST_MEMORY, refused
    # Before anything else is written: it frees the room to write in.
    on_host = _host_standing(device) if status is Status.OUT_OF_HOST_MEMORY else None
    known = secret_values(os.environ)
    words = architectures_unread(error, os.environ) or str(error)
    first_line = redact_text((words.strip().splitlines() or [""])[0], known)
    first_line = first_line.partition(_ADVICE)[0][:_LONGEST]
    evidence = "the allocator's exception" if asked is not None else None
    what = kind = type(error).__name__
    if is_compilers(error):
        evidence, what = "torch.compile failed with the compiler's exception", f"torch.compile failed ({kind})"
    return status, Failure(
        phase=None if between_calls else marks.phase,
        step_index=marks.step_index,
        rank=rank,
        message=f"{what} {_where(marks, between_calls=between_calls)}: {first_line}",
        exception=kind,
        traceback=redact_text("".join(traceback.format_exception(error)), known)[-20_000:],
        bytes_asked=asked,
        bytes_free=free,
        standing=standing,
        host_standing=on_host,
        evidence=evidence,
    )


def _host_standing(device: Device | None) -> HostStanding | None:
    """What is held of the host: the exception keeps the frames that were refused, and they their tensors."""
    try:
        return None if device is None else device.stood_on_host()
    except Exception as error:  # noqa: BLE001 -- nothing of it may hide what ended the rank
        warnings.warn(f"zerobench could not list what is allocated: {error}", stacklevel=2)
        return None


def is_compilers(error: BaseException) -> bool:
    """Whether torch.compile itself failed: dynamo (torch/_dynamo/exc.py) or inductor (torch/_inductor/exc.py)."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def _where(marks: Marks, *, between_calls: bool) -> str:
    phase = "the update" if marks.phase is Phase.STEP else str(marks.phase)
    begun = f"{phase} of step {marks.step_index + 1}" if marks.step_index >= 0 else phase
    return f"outside of the engine's calls, after {begun}" if between_calls else f"in {begun}"


def cpu_allocator_refusal(error: BaseException) -> int | None:
    """Bytes asked, when torch's CPU allocator refused (c10/core/impl/alloc_cpu.cpp throws a plain RuntimeError)."""
    if type(error) is not RuntimeError:
        return None
    match = re.search(r"DefaultCPUAllocator: .{0,200}?you tried to allocate (\d+) bytes", str(error))
    return int(match.group(1)) if match else None
