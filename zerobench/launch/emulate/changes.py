"""Changes of a command that make it fit, each made in a copy: the DeepSpeed configuration file that it names, options
that its script knows, and settings of torch's allocator.

Nothing is guessed: each is played. What cannot be changed from outside, as a batch size that stands in the script, is
not offered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from zerobench.config.trial.allocator import VARIABLES
from zerobench.config.trial.trial import OFFLOADS
from zerobench.launch.emulate.drafts import Draft
from zerobench.launch.emulate.options import Kind

UNLOCKED = "pin_memory false"
"""What it says of the change whose cost in time nobody knows: copies of memory that is not page-locked are slower."""
_CPU = {"device": "cpu", "pin_memory": True}
_MICRO_BATCH, _PASSES = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_EXPANDABLE = "expandable_segments:True"

Change = Callable[[Draft], tuple[str, Draft] | None]
"""What it says, and the draft that it makes; None where there is nothing to change."""


@dataclass(frozen=True)
class Candidate:
    """One or several changes together."""

    says: tuple[str, ...]
    draft: Draft = field(compare=False)


def for_device(
    start: Draft,
    *,
    in_pieces: bool = False,
    has_activations: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Candidate]:
    """What to try where a GPU is too small: each change alone, the cheapest first, then more and more together.

    `in_pieces`: there was room enough for what was refused, and not in one piece. `has_activations`: activations were
    held when memory ran out; without any, what makes them smaller does not help.
    """
    expandable = [partial(_expandable, environ=environ)] if in_pieces else []
    fewer_activations = [_one_sequence, _checkpointing] if has_activations else []
    first: list[Change] = [*expandable, *fewer_activations, _bf16]
    alone, together = (
        [_next_stage, _last_stage, _offload_optimizer],
        [_last_stage, _offload_optimizer, _offload_parameters],
    )
    return _in_order(start, [*first, *alone], [*first, *together])


def for_host(start: Draft, *, counts_locks: bool = False) -> Iterator[Candidate]:
    """What to try where the GPUs have room and a node's memory is too small: what was moved there goes back.

    `counts_locks`: who tries counts what page-locked memory is rounded up by, which a script's tensors do not say.
    """
    places = (("offload_param", "parameters"), ("offload_optimizer", "optimizer states"))
    back = [partial(_on_device, section, words) for section, words in places]
    changes: list[Change] = [_unlocked, *back] if counts_locks else [*back]
    return _in_order(start, changes, changes)


def _in_order(start: Draft, alone: Sequence[Change], together: Sequence[Change]) -> Iterator[Candidate]:
    tried: list[Draft] = [start]
    for change in alone:
        made = change(start)
        if made is not None and made[1] not in tried:
            tried.append(made[1])
            yield Candidate((made[0],), made[1])
    says: tuple[str, ...] = ()
    draft = start
    for change in together:
        made = change(draft)
        if made is None:
            continue
        says, draft = (*says, made[0]), made[1]
        if draft not in tried:
            tried.append(draft)
            yield Candidate(says, draft)


def _expandable(draft: Draft, environ: Mapping[str, str]) -> tuple[str, Draft] | None:
    """Segments that grow, so that what is free is in one piece."""
    name = next((name for name in VARIABLES if environ.get(name)), VARIABLES[0])
    set_before = draft.variables.get(name) or environ.get(name, "")
    if "expandable_segments" in set_before:
        return None
    value = f"{set_before},{_EXPANDABLE}" if set_before else _EXPANDABLE
    return f"{name}={value} in the environment", replace(draft, variables={**draft.variables, name: value})


def _one_sequence(draft: Draft) -> tuple[str, Draft] | None:
    """Micro batch 1, more passes instead: the global batch stays, where the script can make more passes."""
    before, made, written, keeps = 1, draft, "", True
    batch = draft.option(Kind.BATCH)
    if batch is not None and isinstance(batch.value, int) and batch.value > 1:
        before = batch.value
        made, written = made.with_option(batch, 1), f"{batch.names[0]} 1"
        passes = made.option(Kind.PASSES)
        keeps = passes is not None
        if passes is not None:
            more = before * (passes.value if isinstance(passes.value, int) else 1)
            made, written = made.with_option(passes, more), f"{written} {passes.names[0]} {more}"
    size = draft.number(_MICRO_BATCH)
    if size is not None and size > 1:
        before = max(before, size)
        made = made.with_ds({_MICRO_BATCH: 1})
        passed = draft.number(_PASSES) if _PASSES in (draft.ds or {}) else 1
        if passed is not None:
            made = made.with_ds({_PASSES: passed * size})
    if before == 1:
        return None
    smaller = "" if keeps else f", the global batch {before} times smaller"
    return f"micro batch 1 instead of {before}{smaller}{_as_written(written)}", made


def _checkpointing(draft: Draft) -> tuple[str, Draft] | None:
    """Activation checkpointing, where the script has an option for it."""
    option = draft.option(Kind.CHECKPOINTING)
    if option is None or option.value:
        return None
    made = draft.with_option(option, True)
    return f"activation checkpointing{_as_written(option.names[0])}", made


def _bf16(draft: Draft) -> tuple[str, Draft] | None:
    """Mixed precision in bf16, where the script or accelerate has an option for it and 16 bits are not in use."""
    if any((draft.ds or {}).get(name, {}).get("enabled") is True for name in ("bf16", "fp16")):
        return None
    half, mixed = draft.option(Kind.FP16), draft.option(Kind.MIXED_PRECISION)
    if (half is not None and half.value) or (mixed is not None and mixed.value not in (None, "no")):
        return None
    option = draft.option(Kind.BF16)
    if option is not None:
        made = None if option.value else draft.with_option(option, True)
    else:
        option = mixed
        made = None if option is None else draft.with_option(option, "bf16")
    if option is None or made is None:
        return None
    written = option.names[0] if option.kind is Kind.BF16 else f"{option.names[0]} bf16"
    return f"mixed precision in bf16{_as_written(written)}", made


def _as_written(words: str) -> str:
    return f" ({words})" if words else ""


def _next_stage(draft: Draft, at_once: int = 1) -> tuple[str, Draft] | None:
    """The next ZeRO stage, or one that is so many further on, at most the last."""
    if draft.stage is None or draft.stage >= 3:
        return None
    stage = min(3, draft.stage + at_once)
    return f"ZeRO stage {stage}", _with_zero(draft, {"stage": stage})


def _last_stage(draft: Draft) -> tuple[str, Draft] | None:
    return _next_stage(draft, at_once=3)


def _offload_optimizer(draft: Draft) -> tuple[str, Draft] | None:
    """Optimizer states in host memory; a torch optimizer of the script's own is allowed to stay one."""
    if not draft.stage or draft.is_offloaded("offload_optimizer"):
        return None
    made = _with_zero(draft, {"offload_optimizer": _CPU})
    if "optimizer" not in (made.ds or {}):
        forced = (made.ds or {}).get("zero_force_ds_cpu_optimizer", False)
        made = made.with_ds({"zero_force_ds_cpu_optimizer": forced})
    return "optimizer states offloaded to the host", made


def _offload_parameters(draft: Draft) -> tuple[str, Draft] | None:
    """Parameters in host memory, which stage 3 alone can do."""
    if draft.stage != 3 or draft.is_offloaded("offload_param"):
        return None
    return "parameters offloaded to the host", _with_zero(draft, {"offload_param": _CPU})


def _unlocked(draft: Draft) -> tuple[str, Draft] | None:
    """Offloaded states not page-locked: torch rounds what is up to powers of two."""
    places = {name: draft.offloaded(name) for name in OFFLOADS}
    made = {name: {**place, "pin_memory": False} for name, place in places.items() if place.get("pin_memory") is True}
    return (UNLOCKED, _with_zero(draft, made)) if made else None


def _on_device(section: str, words: str, draft: Draft) -> tuple[str, Draft] | None:
    """What was offloaded back from the host."""
    if not draft.is_offloaded(section):
        return None
    return f"{words} on the GPU", _with_zero(draft, {section: {"device": "none"}})


def _with_zero(draft: Draft, settings: Mapping[str, Any]) -> Draft:
    return draft.with_ds({"zero_optimization": {**(draft.zero or {}), **settings}})
