"""What went wrong in this rank, told by the exception's type and by the allocator's own figures."""

from __future__ import annotations

import os
import re
import traceback

import torch

from zerobench.memory.device import Device
from zerobench.memory.recorder import Marks
from zerobench.records import Failure, Status
from zerobench.redaction import redact_text, secret_values


def describe(error: BaseException, marks: Marks, rank: int, device: Device | None) -> tuple[Status, Failure]:
    """Status and failure for an exception that ended the rank."""
    status = Status.CRASH
    asked = free = None
    if isinstance(error, torch.OutOfMemoryError):
        status = Status.OUT_OF_DEVICE_MEMORY
        refusal = device.last_refusal if device is not None else {}
        asked, free = refusal.get("bytes_asked"), refusal.get("bytes_free")
    elif isinstance(error, MemoryError):
        status = Status.OUT_OF_HOST_MEMORY
    elif (refused := cpu_allocator_refusal(error)) is not None:
        status, asked = Status.OUT_OF_HOST_MEMORY, refused
    known = secret_values(os.environ)
    first_line = redact_text((str(error).strip().splitlines() or [""])[0], known)[:300]
    return status, Failure(
        phase=marks.phase,
        step_index=marks.step_index,
        rank=rank,
        message=f"{type(error).__name__} in {marks.phase} of step {marks.step_index}: {first_line}",
        exception=type(error).__name__,
        traceback=redact_text("".join(traceback.format_exception(error))[-20_000:], known),
        bytes_asked=asked,
        bytes_free=free,
        evidence="the exception of the allocator itself" if asked is not None else None,
    )


def cpu_allocator_refusal(error: BaseException) -> int | None:
    """Bytes asked, when torch's CPU allocator refused (c10/core/impl/alloc_cpu.cpp throws a plain RuntimeError)."""
    if type(error) is not RuntimeError:
        return None
    found = re.search(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes", str(error))
    return int(found.group(1)) if found else None
