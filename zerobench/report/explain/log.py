"""`zerobench explain LOG`: what a log says of memory that ran out, for somebody who has nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerobench.errors import UserError
from zerobench.report.explain.kill_message import Killed, killed_in
from zerobench.report.explain.passage import Passage, says
from zerobench.report.explain.torch_message import TorchMessage, messages_in
from zerobench.report.explain.who_asked import asker_of, phase_of
from zerobench.report.notes import listed
from zerobench.units import format_bytes

_EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.9)"
_MUCH = 0.1
"""Share of a device that is worth a sentence."""


def explain_log(text: str, name: str) -> list[Passage]:
    """What was refused, what that means, who asked. Raises UserError: the log says nothing of memory that ran out."""
    refused, killed = messages_in(text), killed_in(text)
    if refused:
        first = refused[0]
        found = [_refused(first, refused), _meaning(first), _asked(first)]
        return [passage for passage in found if passage.lines]
    if killed is not None:
        return [_killed(killed)]
    if "CUDA error: out of memory" in text:
        return [_outside()]
    raise UserError(
        f"RUN: {name}: it holds no out-of-memory message that torch, DeepSpeed's launcher, torchrun, Slurm or the"
        " kernel writes"
    )


def _refused(one: TorchMessage, all_of_them: list[TorchMessage]) -> Passage:
    told_apart = one.process_bytes is not None
    others = "held by other processes" if told_apart else "held by processes, this one perhaps among them"
    sizes = {
        "asked for": one.asked_bytes,
        "the device has": one.total_bytes,
        "this process may have": one.allowed_bytes,
        "free by the driver's count": one.free_bytes,
        "allocated by torch": one.allocated_bytes,
        "of that in CUDA graphs' pools": one.private_pools_bytes,
        "reserved by torch, and free in pieces": one.unallocated_bytes,
        "outside torch: context, NCCL": one.outside_torch_bytes,
        others: one.other_processes_bytes,
    }
    ranks = sorted({each.rank for each in all_of_them if each.rank is not None})
    lines = says(
        *(f"{what}: {format_bytes(size)}" for what, size in sizes.items() if size is not None),
        f"refused on rank{'s' if len(ranks) > 1 else ''} {listed(list(map(str, ranks)))}" if ranks else None,
    )
    where = "The host's memory was refused" if one.on_host else "GPU memory was refused"
    return Passage(where, lines, {"refusal": {**_figures(one), "ranks": ranks}})


def _figures(one: TorchMessage) -> dict[str, Any]:
    names = (
        "asked_bytes",
        "total_bytes",
        "free_bytes",
        "allocated_bytes",
        "unallocated_bytes",
        "outside_torch_bytes",
        "other_processes_bytes",
    )
    return {**{name: getattr(one, name) for name in names}, "is_in_pieces": one.is_in_pieces, "on_host": one.on_host}


def _meaning(one: TorchMessage) -> Passage:
    return Passage("What it means", says(*_sentences(one)))


def _sentences(one: TorchMessage) -> Iterator[str]:
    asked, free, unallocated = one.asked_bytes or 0, one.free_bytes or 0, one.unallocated_bytes or 0
    if one.on_host:
        yield "torch asked the operating system for host memory and got none: a limit (ulimit, a control group) or the "
        "machine's memory is reached."
    elif one.is_in_pieces:
        yield (
            f"Fragmentation: {format_bytes(free + unallocated)} were free in all, and not in one piece. Segments that "
            f"grow keep what is free together: {_EXPANDABLE}. It costs nothing that is worth a measurement."
        )
    elif one.is_in_pieces is False:
        missing = format_bytes(asked - free - unallocated)
        yield f"Really full: had all that was free lain in one piece, {missing} were missing for this request alone."
        if unallocated > _MUCH * (one.total_bytes or 0):
            yield f"{format_bytes(unallocated)} lay free in pieces: {_EXPANDABLE} helps, and is not enough."
    if one.process_bytes is not None and (one.other_processes_bytes or 0) > _MUCH * (one.total_bytes or 0):
        yield f"Other processes hold {format_bytes(one.other_processes_bytes)} of this GPU: nvidia-smi names them."
    if one.allowed_bytes is not None and one.total_bytes and one.allowed_bytes < one.total_bytes:
        yield "The process is held below what the device has by torch.cuda.set_per_process_memory_fraction."


def _asked(one: TorchMessage) -> Passage:
    phase, asker = phase_of(one.frames), asker_of(one.frames)
    if not one.frames:
        return Passage("Who asked", says("The log has no traceback before the message, so nobody knows who asked."))
    last = one.frames[-1]
    return Passage(
        "Who asked",
        says(
            None if phase is None else f"The training was in {phase}.",
            None if asker is None else f"It {asker.does}.",
            None if asker is None else f"How much that takes depends on: {asker.settings}.",
            f"The innermost line: {last.file}:{last.line}, {last.function}.",
        ),
        {"phase": phase, "doing": None if asker is None else asker.does},
    )


def _killed(one: Killed) -> Passage:
    proof = (
        f"A process was killed because the host's memory ran out: {one.proof} says so."
        if one.proof
        else "A process was killed by SIGKILL. Most often that is the kernel's out-of-memory killer, but anybody may "
        "send it: `dmesg -T | grep -i 'killed process'` or the scheduler's record says whether it was."
    )
    lines = says(
        proof,
        f"The line: {one.line}",
        None if one.resident_bytes is None else f"It held {format_bytes(one.resident_bytes)} then.",
        None if one.last_reading is None else f"DeepSpeed's last word of host memory: {one.last_reading}.",
        "What takes host memory: a checkpoint that each rank of a node loads whole; offloaded states (16 to 18 bytes a "
        "parameter, divided by the ranks); page-locked copies, which are rounded up to powers of two; data workers.",
    )
    figures = {"killed": {"proof": one.proof, "resident_bytes": one.resident_bytes}}
    return Passage("Host memory ran out" if one.proof else "A process was killed", lines, figures)


def _outside() -> Passage:
    return Passage(
        "CUDA itself had no memory",
        says(
            "`CUDA error: out of memory` comes from the driver and not from torch's allocator: making the context, "
            "page-locking host memory (pin_memory of offload), or a library's own request. No figures are told.",
            "Look for other processes on the GPU (nvidia-smi), and for page-locked host memory above the node's.",
        ),
    )
