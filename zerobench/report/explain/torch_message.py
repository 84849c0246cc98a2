"""torch's own words of memory that it was refused, found in a log: every wording of torch 2.x.

From c10/cuda/CUDACachingAllocator.cpp (the last lines of `malloc`): 2.0 says it in brackets, 2.1 on in sentences, with
`capacty` until 2.2; what other processes hold and private pools are named where there are any. torch rounds sizes to
hundredths of their unit. The host's is c10/core/impl/alloc_cpu.cpp's; Python's, numpy's and C++'s are read beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = r"([\d.]{1,20}) (bytes|KiB|MiB|GiB|TiB)"
_REFUSED = re.compile(r"\b(CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate")
_HOST_REFUSED = re.compile(
    r"DefaultCPUAllocator: .{0,200}?you tried to allocate (?P<torch>\d{1,20}) bytes"
    r"|(?<![A-Za-z])(?:_Array)?MemoryError(?:: Unable to allocate (?P<numpy>[\d.]{1,20} (?:bytes|[KMGT]iB))|:|$)"
    r"|unable to mmap (?P<file>\d{1,20}) bytes from file .{0,1000}?Cannot allocate memory"
    r"|\bstd::bad_alloc\b|\[Errno 12\] Cannot allocate memory"
)
_FIGURES: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "asked_bytes": rf"Tried to allocate {_SIZE}",
        "total_bytes": rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity",
        "free_bytes": rf"of which {_SIZE} is free|; {_SIZE} free",
        "allowed_bytes": rf"{_SIZE} allowed",
        "process_bytes": rf"this process has {_SIZE} memory in use",
        "allocated_bytes": rf"Of the allocated memory {_SIZE} is allocated by PyTorch|{_SIZE} already allocated",
        "private_pools_bytes": rf"with {_SIZE} allocated in private pools",
        "unallocated_bytes": rf"{_SIZE} is reserved by PyTorch but unallocated",
        "reserved_bytes": rf"{_SIZE} reserved in total by PyTorch",
    }.items()
}
_OTHERS = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")
_RANK = re.compile(r"\[rank(\d{1,9})\]: ?")
_PROCESS = re.compile(r"\[rank\d+\]:|\(\w{1,100} pid=\d{1,10}[^)]{0,200}\)")
"""Prefix by torchrun, DeepSpeed or Ray of each line of a process."""
_FRAMES = (
    re.compile(r'File "([^"]+)", line (\d+), in (\S+)'),
    re.compile(r"^[│|\s]*+(\S+\.py):(\d+) +in +([^\s│|]*+)[│|\s]*+$"),  # rich; the function may be in the next line
    re.compile(r"\bFile (\S+\.py):(\d+), in (?:\w+\.)*(\w+)\("),  # notebooks
)
_MOST_LINES_BACK = 5_000
"""A log of many refusals without tracebacks is not read again for each: no traceback of Python is as long."""
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
    """Rank that torchrun or DeepSpeed put before the line."""
    frames: Sequence[Frame]
    """The traceback that ends in it, the innermost last."""
    on_host: bool
    asked_bytes: int | None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allowed_bytes: int | None = None
    """Memory that set_per_process_memory_fraction leaves to this process."""
    process_bytes: int | None = None
    """Memory of the device that this process holds, its context and libraries included, where torch could tell it
    apart."""
    other_processes_bytes: int | None = None
    """Memory of others; a container's own process may be among them where `process_bytes` is None."""
    other_processes: int = 0
    """Number of the others."""
    allocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    """The part of it that CUDA graphs' pools hold."""
    unallocated_bytes: int | None = None
    """Reserved by torch's allocator, and free within its segments."""

    @property
    def is_in_pieces(self) -> bool | None:
        """True if there was room for it in all, and not in one piece; None where the figures do not tell: they are not
        all there, equal to what was asked but for their rounding, or the driver refused what it counts as free.
        """
        if None in (self.asked_bytes, self.free_bytes, self.unallocated_bytes) or self.is_below_a_limit:
            return None
        parts = (self.asked_bytes or 0, self.free_bytes or 0, self.unallocated_bytes or 0)
        spare = parts[1] + parts[2] - parts[0]
        if parts[1] > parts[0] + _rounding(*parts) or abs(spare) <= _rounding(*parts):
            return None
        return spare > 0

    @property
    def is_below_a_limit(self) -> bool:
        """True if the process may take less than the device has."""
        return self.allowed_bytes is not None and self.allowed_bytes < (self.total_bytes or 0)

    @property
    def outside_torch_bytes(self) -> int | None:
        """Memory of this process outside torch's reserve: CUDA's context, NCCL; None if not in the message."""
        held = (self.process_bytes, self.allocated_bytes, self.unallocated_bytes)
        return None if None in held else max(0, held[0] - held[1] - held[2])  # type: ignore[operator] # none is None


def messages_in(text: str) -> list[TorchMessage]:
    """All refusals that torch told in a log, in order, each once."""
    lines = text.splitlines()
    messages = [
        (at, _read(lines, at)) for at, line in enumerate(lines) if _REFUSED.search(line) or _HOST_REFUSED.search(line)
    ]
    first: dict[tuple[int | None, str], tuple[int, TorchMessage]] = {}
    for at, message in messages:
        first.setdefault((message.rank, message.text), (at, message))
    return [replace(message, frames=frames_before(lines, at)) for at, message in first.values()]


def _read(lines: Sequence[str], at: int) -> TorchMessage:
    """The message at line `at`, without its traceback."""
    named = _RANK.search(lines[at])
    rank = int(named[1]) if named else None
    frames: tuple[Frame, ...] = ()
    on_host = _HOST_REFUSED.search(lines[at])
    if on_host:
        number = on_host["torch"] or on_host["file"]
        asked = int(number) if number else _bytes(*on_host["numpy"].split()) if on_host["numpy"] else None
        return TorchMessage(on_host[0], rank, frames, on_host=True, asked_bytes=asked)
    whole = " ".join(_RANK.sub("", line).strip() for line in _same_message(lines, at))
    whole = whole[whole.index(" out of memory. Tried") - 4 :].strip()
    sizes = {name: _size(pattern, whole) for name, pattern in _FIGURES.items()}
    reserved = sizes.pop("reserved_bytes")
    if sizes["unallocated_bytes"] is None and reserved is not None and sizes["allocated_bytes"] is not None:
        sizes["unallocated_bytes"] = reserved - sizes["allocated_bytes"]
    if (sizes["process_bytes"] or 0) > (sizes["total_bytes"] or 0) or sizes["process_bytes"] == 0:
        sizes["process_bytes"] = None  # NVML knows no sizes in some containers, and says 0 or 2^64 of them
    others = [_bytes(*parts) for parts in _OTHERS.findall(whole)]
    return TorchMessage(
        whole,
        rank,
        frames,
        on_host=False,
        other_processes_bytes=sum(others) or None,
        other_processes=len(others),
        **sizes,
    )


def _same_message(lines: Sequence[str], at: int) -> Iterator[str]:
    """Line `at` and what may go on of it: no other message, nor another process' line."""
    process = _PROCESS.search(lines[at])
    yield lines[at]
    for line in lines[at + 1 : at + _LINES_OF_A_MESSAGE]:
        other = _PROCESS.search(line)
        if _REFUSED.search(line) or (other and (process is None or other[0] != process[0])):
            return
        yield line


def _size(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    parts = [part for part in match.groups() if part is not None] if match else []
    return _bytes(parts[0], parts[1]) if parts else None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _rounding(*sizes: int) -> float:
    """By how much a sum of sizes, each told in hundredths of its unit, may be off."""
    return sum(0.005 * max((unit for unit in _UNITS.values() if unit <= size), default=0) for size in sizes)


def frames_before(lines: Sequence[str], at: int) -> tuple[Frame, ...]:
    """The frames of the traceback that ends at line `at`; of several processes' in each other, its own."""
    process = _PROCESS.search(lines[at])
    frames: list[Frame] = []
    after = ""
    for line in reversed(lines[max(0, at - _MOST_LINES_BACK) : at]):
        if process is not None and process[0] not in line:
            continue
        if "Traceback (most recent call last)" in line:
            break
        match = next((match for frame in _FRAMES if (match := frame.search(line))), None)
        if match:
            frames.append(Frame(match[1], int(match[2]), match[3] or after))
        after = line.strip("│| ")
    return tuple(reversed(frames))
