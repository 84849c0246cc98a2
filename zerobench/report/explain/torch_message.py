"""torch's own words of memory that it was refused, found in a log: every wording of torch 2.x.

From c10/cuda/CUDACachingAllocator.cpp (the last lines of `malloc`): 2.0 says it in brackets, 2.1 on in sentences, with
`capacty` until 2.2; what other processes hold and private pools are named where there are any. torch rounds sizes to
hundredths of their unit. The host's is c10/core/impl/alloc_cpu.cpp's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB|TiB)"
_REFUSED = re.compile(r"\b(CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate")
_HOST_REFUSED = re.compile(r"DefaultCPUAllocator: .*you tried to allocate (\d+) bytes")
_FIGURES = {
    "asked_bytes": rf"Tried to allocate {_SIZE}",
    "total_bytes": rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity",
    "free_bytes": rf"of which {_SIZE} is free|; {_SIZE} free",
    "allowed_bytes": rf"{_SIZE} allowed",
    "process_bytes": rf"this process has {_SIZE} memory in use",
    "allocated_bytes": rf"Of the allocated memory {_SIZE} is allocated by PyTorch|{_SIZE} already allocated",
    "private_pools_bytes": rf"with {_SIZE} allocated in private pools",
    "unallocated_bytes": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved_bytes": rf"{_SIZE} reserved in total by PyTorch",
}
_OTHERS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_RANK = re.compile(r"\[rank(\d+)\]: ?")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_LINES_OF_A_MESSAGE = 4
"""A terminal or a notebook may have broken it."""


@dataclass(frozen=True)
class Frame:
    """One line of a Python traceback."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class TorchMessage:
    """One refusal as torch told it, in bytes; None is not said."""

    text: str
    rank: int | None
    """Which torchrun or DeepSpeed put before the line."""
    frames: Sequence[Frame]
    """The traceback that ends in it, the innermost last."""
    on_host: bool
    asked_bytes: int | None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allowed_bytes: int | None = None
    """What set_per_process_memory_fraction leaves to this process."""
    process_bytes: int | None = None
    """What this process holds of the device, its context and libraries included, where torch could tell it apart."""
    other_processes_bytes: int | None = None
    """What others hold; a container's own process may be among them where `process_bytes` is None."""
    allocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    """Of that, what CUDA graphs' pools hold."""
    unallocated_bytes: int | None = None
    """Reserved by torch's allocator, and free within its segments."""

    @property
    def is_in_pieces(self) -> bool | None:
        """Whether there was room for it in all, and not in one piece; None where the figures are not all told."""
        if self.asked_bytes is None or self.free_bytes is None or self.unallocated_bytes is None:
            return None
        return self.free_bytes + self.unallocated_bytes >= self.asked_bytes

    @property
    def outside_torch_bytes(self) -> int | None:
        """What this process holds beside torch's reserve: CUDA's context, NCCL; None where that is not told."""
        held = (self.process_bytes, self.allocated_bytes, self.unallocated_bytes)
        return None if None in held else max(0, held[0] - held[1] - held[2])  # type: ignore[operator] # none is None


def messages_in(text: str) -> list[TorchMessage]:
    """All refusals that torch told in a log, in order, each once."""
    lines = text.splitlines()
    messages = [
        _read(lines, at) for at, line in enumerate(lines) if _REFUSED.search(line) or _HOST_REFUSED.search(line)
    ]
    return list({(message.rank, message.text): message for message in reversed(messages)}.values())[::-1]


def _read(lines: Sequence[str], at: int) -> TorchMessage:
    named = _RANK.search(lines[at])
    rank = int(named[1]) if named else None
    frames = _frames_before(lines, at, named[0].strip() if named else None)
    on_host = _HOST_REFUSED.search(lines[at])
    if on_host:
        return TorchMessage(on_host[0], rank, frames, on_host=True, asked_bytes=int(on_host[1]))
    whole = " ".join(_RANK.sub("", line).strip() for line in lines[at : at + _LINES_OF_A_MESSAGE])
    whole = whole[whole.index(" out of memory. Tried") - 4 :].strip()
    sizes = {name: _size(pattern, whole) for name, pattern in _FIGURES.items()}
    reserved = sizes.pop("reserved_bytes")
    if sizes["unallocated_bytes"] is None and reserved is not None and sizes["allocated_bytes"] is not None:
        sizes["unallocated_bytes"] = reserved - sizes["allocated_bytes"]
    if (sizes["process_bytes"] or 0) > (sizes["total_bytes"] or 0) or sizes["process_bytes"] == 0:
        sizes["process_bytes"] = None  # NVML knows no sizes in some containers, and says 0 or 2^64 of them
    others = [_bytes(*parts) for parts in _OTHERS.findall(whole)]
    return TorchMessage(whole, rank, frames, on_host=False, other_processes_bytes=sum(others) or None, **sizes)


def _size(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    parts = [part for part in match.groups() if part is not None] if match else []
    return _bytes(parts[0], parts[1]) if parts else None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _frames_before(lines: Sequence[str], at: int, prefix: str | None) -> tuple[Frame, ...]:
    """The frames of the traceback that ends at line `at`; of several ranks' tracebacks in each other, `prefix`'s."""
    frames: list[Frame] = []
    for line in reversed(lines[:at]):
        if prefix is not None and prefix not in line:
            continue
        if "Traceback (most recent call last)" in line:
            break
        match = _FRAME.search(line)
        if match:
            frames.append(Frame(match[1], int(match[2]), match[3]))
    return tuple(reversed(frames))
