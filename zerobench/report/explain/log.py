"""`zerobench explain LOG`: what a log says of memory that ran out, for somebody who has nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from zerobench.common.errors import UserError
from zerobench.common.units import format_bytes
from zerobench.report.explain.kill_message import KilledProcess, killed_in
from zerobench.report.explain.topic import Topic, says
from zerobench.report.explain.torch_message import Frame, TorchMessage, frames_before, messages_in
from zerobench.report.explain.who_asked import asker_of, phase_of
from zerobench.report.figures.notes import listed

_EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9)"
_NCCL = re.compile(r"Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:calloc|malloc)(?: async)? \d+ bytes")
"""NCCL's own words where CUDA refuses it; the number is in newer releases only."""
_OUTSIDE = re.compile(r"(?:CUDA|HIP) error: out of memory|\b(?:CU|HIP)[A-Z]+_STATUS_ALLOC_FAILED\b")
_SHARED_MEMORY = re.compile(
    r"is killed by signal: Bus error|unable to (?:allocate|write|open) .{0,1000}?(?:shared memory|</torch_)"
    r"|creating shared memory segment"
)
_MUCH = 0.1
_NEARLY_ALL = 0.9
"""Share of a device that is worth a sentence."""


def explain_log(text: str, name: str) -> list[Topic]:
    """Explain the refused request and its caller. Raises UserError: the log says nothing of memory that ran out."""
    refused, killed, lines = messages_in(text), killed_in(text), text.splitlines()
    if refused:
        first = next((message for message in refused if message.frames), refused[0])
        topics = [_meaning(first, refused), _request(first.frames), _figures(first, refused)]
        return [topic for topic in topics if topic.lines]
    if any(map(_SHARED_MEMORY.search, lines)):
        return [_shared_memory()]
    if killed is not None:
        return [_killed(killed)]
    nccl = next(filter(None, map(_NCCL.search, lines)), None)
    if nccl is not None:
        return [_nccl(nccl[0])]
    at = next((at for at, line in enumerate(lines) if _OUTSIDE.search(line)), None)
    if at is not None:
        return _outside(lines, at)
    raise UserError(
        f"RUN: {name}: no out-of-memory message of torch, NCCL, DeepSpeed, torchrun, Ray, Slurm or the kernel found"
    )


def _figures(message: TorchMessage, all_of_them: list[TorchMessage]) -> Topic:
    told_apart = message.process_bytes is not None
    others = "held by other processes" if told_apart else "held by processes, perhaps including this one"
    sizes = {
        "requested": message.asked_bytes,
        "device capacity": message.total_bytes,
        "limit of this process": message.allowed_bytes,
        "free by the driver's count": message.free_bytes,
        "allocated by torch": message.allocated_bytes,
        "of which in CUDA graph pools": message.private_pools_bytes,
        "reserved but unallocated": message.unallocated_bytes,
        "outside torch: context, NCCL": message.outside_torch_bytes,
        others: message.other_processes_bytes,
    }
    lines = says(*(f"{what}: {format_bytes(size)}" for what, size in sizes.items() if size is not None))
    names = (*_SIZES_TOLD, "outside_torch_bytes", "other_processes_bytes", "is_in_pieces", "on_host")
    told = {name: getattr(message, name) for name in names}
    return Topic("Figures in the message", lines, {"refusal": {**told, "ranks": _ranks(all_of_them)}})


_SIZES_TOLD = ("asked_bytes", "total_bytes", "free_bytes", "allocated_bytes", "unallocated_bytes")
"""Of what a message says, the first that programs are told."""


def _ranks(messages: list[TorchMessage]) -> list[int]:
    return sorted({each.rank for each in messages if each.rank is not None})


def _meaning(message: TorchMessage, all_of_them: list[TorchMessage]) -> Topic:
    ranks = _ranks(all_of_them)
    failed = f"Failed on rank{'s' if len(ranks) > 1 else ''} {listed(list(map(str, ranks)))}." if ranks else None
    return Topic("Out of host memory" if message.on_host else "Out of GPU memory", says(*_sentences(message), failed))


def _sentences(message: TorchMessage) -> Iterator[str]:
    requested, free, unallocated = message.asked_bytes or 0, message.free_bytes or 0, message.unallocated_bytes or 0
    if message.on_host:
        yield (
            "The operating system gave the process no more host memory: a limit (ulimit, a control group) or the "
            "machine's memory is reached."
        )
    elif message.asked_bytes is None:
        yield (
            "No real size was requested (above 10^18 bytes): a wrong or damaged size, often after an earlier error; "
            "look for one above it."
        )
    elif message.is_below_a_limit:
        yield (
            "Full: the limit of this process is reached, which torch.cuda.set_per_process_memory_fraction sets below "
            "the device's capacity."
        )
    elif message.is_in_pieces:
        yield (
            f"Fragmentation: {format_bytes(free + unallocated)} were free in total, but not in one block. "
            f"Expandable segments avoid this at practically no cost: {_EXPANDABLE}."
        )
        if (message.allocated_bytes or 0) > _NEARLY_ALL * (message.total_bytes or 0):
            yield (
                f"But {format_bytes(message.allocated_bytes)} of {format_bytes(message.total_bytes)} was allocated: a "
                "later request may fail all the same."
            )
    elif message.is_in_pieces is False:
        missing = format_bytes(requested - free - unallocated)
        yield f"Full: {missing} missing for this request even without fragmentation."
        if unallocated > _MUCH * (message.total_bytes or 0):
            yield f"{format_bytes(unallocated)} was fragmented: {_EXPANDABLE} helps, but is not enough."
    elif free > requested:
        yield (
            "Refused although the driver counts more than this as free: a limit that it does not count (a shared or "
            "virtual GPU, Windows), or another process held it then. Less of torch's memory may not help."
        )
    elif message.free_bytes is not None and message.unallocated_bytes is not None:
        yield (
            "Full or fragmented cannot be told: what was free in total equals the request to the message's rounding. "
            f"Full in practice; {_EXPANDABLE} costs next to nothing to try."
        )
    if message.process_bytes is not None and (message.other_processes_bytes or 0) > _MUCH * (message.total_bytes or 0):
        yield f"Other processes hold {format_bytes(message.other_processes_bytes)} of this GPU: nvidia-smi names them."
    elif message.other_processes > 1:
        yield (
            f"{message.other_processes} processes hold memory of this GPU: each rank needs its own "
            "(torch.cuda.set_device before the first CUDA call)."
        )


def _request(frames: Sequence[Frame]) -> Topic:
    phase, asker = phase_of(frames), asker_of(frames)
    if not frames:
        return Topic("Requested by", says("Requesting code unknown: traceback missing before the message."))
    last = frames[-1]
    return Topic(
        "Requested by",
        says(
            None if phase is None else f"Phase: {phase}.",
            None if asker is None else f"The code {asker.does}.",
            None if asker is None else f"Size depends on: {asker.settings}.",
            f"Innermost line: {last.file}:{last.line}, {last.function}.",
        ),
        {"phase": phase, "doing": None if asker is None else asker.does},
    )


def _killed(death: KilledProcess) -> Topic:
    proof = (
        f"A process was killed because host memory ran out, according to {death.proof}."
        if death.proof
        else (
            "A process was killed by SIGKILL. Usually that is the kernel's out-of-memory killer; check "
            "with `dmesg -T | grep -i 'killed process'` or the scheduler's record."
        )
    )
    lines = says(
        proof,
        f"Line: {death.line}",
        None if death.resident_bytes is None else f"Resident: {format_bytes(death.resident_bytes)}.",
        None if death.last_reading is None else f"Last host memory reported by DeepSpeed: {death.last_reading}.",
        (
            "Common causes: a full checkpoint loaded by each rank of a node; offloaded states (16 to 18 "
            "bytes per parameter, divided by the ranks); page-locked copies, rounded up to powers of two; "
            "data loader workers."
        ),
    )
    figures = {"killed": {"proof": death.proof, "resident_bytes": death.resident_bytes}}
    return Topic("Host memory ran out" if death.proof else "A process was killed", lines, figures)


def _shared_memory() -> Topic:
    return Topic(
        "Shared memory ran out",
        says(
            "Shared memory (/dev/shm) was full, in which data loader workers and NCCL pass tensors: the log says of "
            "neither GPU nor host memory that it was.",
            "Check `df -h /dev/shm`; give a container more (docker run --shm-size=16g, or --ipc=host), or use fewer "
            "workers.",
        ),
    )


def _outside(lines: Sequence[str], at: int) -> list[Topic]:
    frames = frames_before(lines, at)
    if any(frame.function.startswith("pin_memory") for frame in frames):
        return [
            Topic(
                "Page-locked host memory was refused",
                says(
                    "The driver could not page-lock host memory (pin_memory): host memory or its limit (ulimit -l, a "
                    "container's) is reached, not the GPU's memory. It has no figures.",
                    'Set "pin_memory": false under offload_optimizer and offload_param: copies are slower, and blocks '
                    "are no longer rounded up to powers of two.",
                ),
            ),
            _request(frames),
        ]
    words = _OUTSIDE.search(lines[at])
    topic = Topic(
        "The CUDA driver is out of memory",
        says(
            f"`{words[0] if words else ''}` comes from the driver or a library, not from torch's allocator: creating "
            "the context, page-locking host memory (pin_memory of offload), or a library's own request. "
            "It has no figures.",
            "Check for other processes on the GPU (nvidia-smi), and for more page-locked memory than the node has.",
        ),
    )
    return [topic, _request(frames)] if frames else [topic]


def _nccl(words: str) -> Topic:
    return Topic(
        "NCCL is out of GPU memory",
        says(
            "NCCL asked the driver for its buffers, outside torch's allocator, and was refused.",
            f"Line: {words}.",
            "Check for other processes on the GPU (nvidia-smi); else leave NCCL room: a smaller micro batch, or "
            "torch.cuda.set_per_process_memory_fraction below what torch takes now.",
        ),
    )
