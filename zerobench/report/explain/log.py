"""`zerobench explain LOG`: what a log says of memory that ran out, for somebody who has nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from zerobench.errors import UserError
from zerobench.report.explain.kill_message import KilledProcess, killed_in
from zerobench.report.explain.topic import Topic, says
from zerobench.report.explain.torch_message import TorchMessage, messages_in
from zerobench.report.explain.who_asked import asker_of, phase_of
from zerobench.report.notes import listed
from zerobench.units import format_bytes

_EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9)"
_NCCL = re.compile(r"Cuda failure (?:\d+ )?'out of memory'")
"""NCCL's own words where CUDA refuses it; the number is in newer releases only."""
_MUCH = 0.1
"""Share of a device that is worth a sentence."""


def explain_log(text: str, name: str) -> list[Topic]:
    """What was refused, what that means, who asked. Raises UserError: the log says nothing of memory that ran out."""
    refused, killed = messages_in(text), killed_in(text)
    if refused:
        first = refused[0]
        topics = [_refused(first, refused), _meaning(first), _request(first)]
        return [topic for topic in topics if topic.lines]
    if killed is not None:
        return [_killed(killed)]
    if _NCCL.search(text):
        return [_nccl()]
    if "CUDA error: out of memory" in text:
        return [_outside()]
    raise UserError(
        f"RUN: {name}: no out-of-memory message of torch, NCCL, DeepSpeed, torchrun, Slurm or the kernel found"
    )


def _refused(message: TorchMessage, all_of_them: list[TorchMessage]) -> Topic:
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
    ranks = sorted({each.rank for each in all_of_them if each.rank is not None})
    lines = says(
        *(f"{what}: {format_bytes(size)}" for what, size in sizes.items() if size is not None),
        f"failed on rank{'s' if len(ranks) > 1 else ''} {listed(list(map(str, ranks)))}" if ranks else None,
    )
    where = "Out of host memory" if message.on_host else "Out of GPU memory"
    return Topic(where, lines, {"refusal": {**_figures(message), "ranks": ranks}})


def _figures(message: TorchMessage) -> dict[str, Any]:
    names = (
        "asked_bytes",
        "total_bytes",
        "free_bytes",
        "allocated_bytes",
        "unallocated_bytes",
        "outside_torch_bytes",
        "other_processes_bytes",
    )
    return {
        **{name: getattr(message, name) for name in names},
        "is_in_pieces": message.is_in_pieces,
        "on_host": message.on_host,
    }


def _meaning(message: TorchMessage) -> Topic:
    return Topic("Diagnosis", says(*_sentences(message)))


def _sentences(message: TorchMessage) -> Iterator[str]:
    requested, free, unallocated = message.asked_bytes or 0, message.free_bytes or 0, message.unallocated_bytes or 0
    if message.on_host:
        yield (
            "The operating system gave torch no host memory: a limit (ulimit, a control group) or the "
            "machine's memory is reached."
        )
    elif message.is_in_pieces:
        yield (
            f"Fragmentation: {format_bytes(free + unallocated)} were free in total, but not in one block. "
            f"Expandable segments avoid this at practically no cost: {_EXPANDABLE}."
        )
    elif message.is_in_pieces is False:
        missing = format_bytes(requested - free - unallocated)
        yield f"Full: {missing} missing for this request even without fragmentation."
        if unallocated > _MUCH * (message.total_bytes or 0):
            yield f"{format_bytes(unallocated)} was fragmented: {_EXPANDABLE} helps, but is not enough."
    if message.process_bytes is not None and (message.other_processes_bytes or 0) > _MUCH * (message.total_bytes or 0):
        yield f"Other processes hold {format_bytes(message.other_processes_bytes)} of this GPU: nvidia-smi names them."
    if message.allowed_bytes is not None and message.total_bytes and message.allowed_bytes < message.total_bytes:
        yield "torch.cuda.set_per_process_memory_fraction limits the process below the device's capacity."


def _request(message: TorchMessage) -> Topic:
    phase, asker = phase_of(message.frames), asker_of(message.frames)
    if not message.frames:
        return Topic("Who asked", says("Requesting code unknown: traceback missing before the message."))
    last = message.frames[-1]
    return Topic(
        "Who asked",
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


def _outside() -> Topic:
    return Topic(
        "The CUDA driver is out of memory",
        says(
            "`CUDA error: out of memory` comes from the driver, not from torch's allocator: creating "
            "the context, page-locking host memory (pin_memory of offload), or a library's own request. "
            "It has no figures.",
            "Check for other processes on the GPU (nvidia-smi), and for more page-locked memory than the node has.",
        ),
    )


def _nccl() -> Topic:
    return Topic(
        "NCCL is out of GPU memory",
        says(
            "NCCL asked the driver for its buffers, outside torch's allocator, and was refused. It has no figures.",
            "Check for other processes on the GPU (nvidia-smi); else leave NCCL room: a smaller micro batch, or "
            "torch.cuda.set_per_process_memory_fraction below what torch takes now.",
        ),
    )
