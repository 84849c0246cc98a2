"""Phrases on the holders of a part of a peak, from the record."""

from __future__ import annotations

from zerobench.common.units import counted, format_bytes
from zerobench.records.records import Holder, PeakPart
from zerobench.report.words.column_units import plain

_NAMES = {
    Holder.AUTOGRAD: "autograd",
    Holder.ENGINE: "the engine",
    Holder.OPTIMIZER: "the optimizer",
    Holder.MODEL: "the model",
    Holder.LOOP: "the training loop",
    Holder.OPERATION: "running operations",
    Holder.LIBRARY: "the matrix library",
}


def held_part(part: PeakPart) -> str:
    """`18.00 MiB in 6 tensors held by autograd: saved for backward in layers.*.mlp.experts (Qwen3MoeExperts)`."""
    return f"{format_bytes(part.total_bytes)} in {counted(part.count, 'tensor')} {holders_of(part)}"


def holders_of(part: PeakPart) -> str:
    """`held by autograd: saved for backward in layers.*.mlp.experts (Qwen3MoeExperts)`, or where it was allocated."""
    names = " and ".join(_NAMES[holder] for holder in part.holders)
    held = f"held by {names}" if names else "of an unknown holder"
    module = part.module if part.path is None else f"{part.path} ({part.module})"
    if Holder.AUTOGRAD in part.holders and module:
        return f"{held}: saved for backward in {plain(module)}"
    origin = part.site or module
    return f"{held}, allocated in {plain(origin)}" if origin else held
