"""Remedies that make a part of a peak smaller, by its holder and category: for any model, strategy and program.

A part is freed when its last holder lets go. Where several hold it, what is offered acts on each of them; where one of
them has nothing to offer, nothing is. Records without holders (older ones, closed forms) are taken to have the usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Category
from zerobench.config.deepspeed.case import Case
from zerobench.config.derived.roles import num_servers
from zerobench.config.derived.strategy import STRATEGIES, paper_stage
from zerobench.config.trial.trial import Offload, TrialSpec
from zerobench.records.records import Holder, PeakPart
from zerobench.records.trials import Trial, case_of
from zerobench.report.explain.memory_causes import MOMENTS, reduce_buckets
from zerobench.report.words.labels import brief

SMALLER_BUCKET = 50_000_000
"""A reduce bucket of a tenth of DeepSpeed's default."""
_STATES = (*MOMENTS, Category.OTHER_OPTIMIZER_STATES)
_OWNERS = (Holder.MODEL, Holder.ENGINE, Holder.OPTIMIZER, Holder.OPERATION)
"""Holders of model states: what divides these over ranks or moves them to the host acts on all."""
_LIMITS = ("stage3_max_live_parameters", "stage3_prefetch_bucket_size", "stage3_max_reuse_distance")


@dataclass(frozen=True)
class Remedy:
    """A change of a trial's settings that makes a part smaller."""

    words: str
    """In a sentence, after "less with"."""
    setting: str = ""
    """As a sweep's YAML has it; empty where the change is not one that can be evaluated."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrialSpec with their new values."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys of DeepSpeed's zero_optimization with theirs."""

    def applied(self, spec: TrialSpec) -> TrialSpec:
        """Return `spec` with the change."""
        keys = {f"zero_optimization.{name}": value for name, value in self.keys.items()}
        config = {"ds_config": {**spec.ds_config, **keys}} if keys else {}
        return spec.model_copy(update={**self.fields, **config})


@dataclass(frozen=True)
class _Held:
    """A part that is to become smaller, and the trial that it is of."""

    spec: TrialSpec
    case: Case | None
    nbytes: int
    part: PeakPart | None

    @property
    def stage(self) -> int:
        return paper_stage(self.spec) or 0

    def of_deepspeed(self, words: str, setting: str, **changes: Mapping[str, Any]) -> Remedy:
        """Return a remedy that is a setting of DeepSpeed's; it is not evaluated where the user's own file has it."""
        is_ours = self.case is not None and self.spec.ds_config_file is None
        return Remedy(words, setting, **changes) if is_ours else Remedy(words)


def remedies(trial: Trial, category: Category, nbytes: int, part: PeakPart | None = None) -> list[Remedy]:
    """Return the changes that make `nbytes` of `category` smaller, the least costly first.

    `part` is the largest part of them in the record. Empty where the trial has made all known changes.
    """
    spec, case = trial.spec, case_of(trial)
    if category in {Category.PARAMETERS, Category.GRADIENTS, *_STATES} and (otherwise := _beyond_stages(spec)):
        return [Remedy(otherwise)]
    held = _Held(spec, case, nbytes, part)
    holders = part.holders if part is not None and part.holders else _usual_holders(category, case)
    advice = [_REMEDIES.get((holder, category)) for holder in holders]
    offered = [[] if advise is None else list(advise(held)) for advise in advice]
    if len(offered) < 2 or not all(offered):
        return offered[0] if len(offered) == 1 else []
    shared = [remedy for remedy in offered[0] if all(remedy in others for others in offered[1:])]
    return shared or [_together(offered)]


def remedy(trial: Trial, category: Category, nbytes: int, part: PeakPart | None = None) -> str | None:
    """Return the same as a phrase; None where there is none."""
    return " or ".join(change.words for change in remedies(trial, category, nbytes, part)) or None


def is_held_otherwise(category: Category, part: PeakPart) -> bool:
    """Return whether autograd or the loop holds what an engine or a model usually does, so that a reader must know."""
    usual = _usual_holders(category, None)
    return bool(usual) and bool({Holder.AUTOGRAD, Holder.LOOP} & set(part.holders) - set(usual))


def _together(offered: Sequence[Sequence[Remedy]]) -> Remedy:
    """One change of each holder's, as none of them alone frees anything."""
    words = " together with ".join(" or ".join(change.words for change in changes) for changes in offered)
    firsts = [changes[0] for changes in offered]
    if not all(change.setting for change in firsts):
        return Remedy(words)
    fields = {name: value for change in firsts for name, value in change.fields.items()}
    keys = {name: value for change in firsts for name, value in change.keys.items()}
    return Remedy(words, ", ".join(change.setting for change in firsts), fields, keys)


def _usual_holders(category: Category, case: Case | None) -> list[Holder]:
    if category is Category.GATHERED_PARAMETERS and case is not None and not case.replaces_linear:
        return [Holder.AUTOGRAD]
    return [holder for holder, known in _REMEDIES if known is category][:1]


def _recompute(held: _Held) -> Iterator[Remedy]:
    if not held.spec.activation_checkpointing:
        setting = "activation_checkpointing: true"
        yield Remedy(setting, setting, {"activation_checkpointing": True})


def _smaller_batch(held: _Held) -> Iterator[Remedy]:
    name = "micro_batch_size" if held.spec.micro_batch_size > 1 else "sequence_length"
    half = max(getattr(held.spec, name) // 2, 1)
    words = "a smaller micro_batch_size" if name == "micro_batch_size" else "a shorter sequence_length"
    yield Remedy(words, f"{name}: {half}", {name: half})


def _recompute_or_shorten(held: _Held) -> Iterator[Remedy]:
    """Offer recomputation; a shorter sequence, which is other work, only where blocks are recomputed already."""
    yield from _recompute(held)
    if held.spec.activation_checkpointing or held.spec.micro_batch_size > 1:
        yield from _smaller_batch(held)


def _save_no_weights(held: _Held) -> Iterator[Remedy]:
    """Limits of gathered parameters free nothing that autograd has saved, nor do leaf modules.

    DeepSpeed's linear layer saves the parameter, whose memory it can free, in place of a view of it.
    """
    is_linear = held.part is None or held.part.module == "Linear"
    if is_linear and held.case is not None and held.case.stage == 3 and not held.case.replaces_linear:
        words = "memory_efficient_linear: true, so that autograd holds no gathered weights"
        setting = "memory_efficient_linear: true"
        yield held.of_deepspeed(words, setting, keys={"memory_efficient_linear": True})
    yield from _recompute(held)


def _fewer_gathered(held: _Held) -> Iterator[Remedy]:
    if held.case is not None and held.case.stage == 3 and int(held.case.zero(_LIMITS[0])):
        words = f"a smaller {_LIMITS[0]} or {_LIMITS[1]}"
        yield held.of_deepspeed(words, f"{', '.join(_LIMITS)}: 0", keys=dict.fromkeys(_LIMITS, 0))


def _smaller_bucket(held: _Held) -> Iterator[Remedy]:
    case, nbytes = held.case, held.nbytes
    if case is None or not case.stage or reduce_buckets(case, nbytes) is None or case.bucket_elements <= SMALLER_BUCKET:
        return
    size, would_be = brief(SMALLER_BUCKET), format_bytes(nbytes * SMALLER_BUCKET / case.bucket_elements)
    words, setting = f"reduce_bucket_size {size} ({would_be})", f"reduce_bucket_size: {size}"
    yield held.of_deepspeed(words, setting, keys={"reduce_bucket_size": SMALLER_BUCKET})


def _divide_parameters(held: _Held) -> Iterator[Remedy]:
    if held.spec.offload_param is not Offload.NONE:
        return
    if held.stage < 3 and held.spec.world_size > 1:
        yield held.of_deepspeed("stage 3", "strategy: zero3", fields={"strategy": "zero3"})
    if held.stage == 3:
        yield held.of_deepspeed("offload_param: cpu", "offload_param: cpu", fields={"offload_param": Offload.CPU})
    else:
        yield Remedy("offload_param: cpu at stage 3")


def _divide_gradients(held: _Held) -> Iterator[Remedy]:
    if held.stage < 2 and held.spec.world_size > 1:
        yield held.of_deepspeed("stage 2 or higher", "strategy: zero2", fields={"strategy": "zero2"})


def _divide_states(held: _Held) -> Iterator[Remedy]:
    if held.spec.offload_optimizer is not Offload.NONE:
        return
    if held.stage == 0 and held.spec.world_size > 1:
        yield held.of_deepspeed("stage 1 or higher", "strategy: zero1", fields={"strategy": "zero1"})
    if held.stage:
        setting = "offload_optimizer: cpu"
        yield held.of_deepspeed(setting, setting, fields={"offload_optimizer": Offload.CPU})
    else:
        yield Remedy("offload_optimizer: cpu from stage 1 on")


def _beyond_stages(spec: TrialSpec) -> str | None:
    """Return what makes model states smaller where no ZeRO stage can be chosen: a server has them whole, and ranks that
    divide the model have divided them.
    """
    if num_servers(spec):
        return "a strategy that partitions states (zero1 to zero3, fsdp)"
    info = STRATEGIES.get(spec.strategy)  # a user's own script has another name
    return None if info is None or info.divides_batch else "more ranks to partition the model over"


_REMEDIES: Mapping[tuple[Holder, Category], Callable[[_Held], Iterator[Remedy]]] = {
    (Holder.AUTOGRAD, Category.ACTIVATIONS): _recompute_or_shorten,
    (Holder.LOOP, Category.ACTIVATIONS): _smaller_batch,
    (Holder.AUTOGRAD, Category.LOGITS_AND_LOSS): _smaller_batch,
    (Holder.LOOP, Category.LOGITS_AND_LOSS): _smaller_batch,
    (Holder.OPERATION, Category.LOGITS_AND_LOSS): _smaller_batch,
    (Holder.ENGINE, Category.GATHERED_PARAMETERS): _fewer_gathered,
    (Holder.AUTOGRAD, Category.GATHERED_PARAMETERS): _save_no_weights,
    (Holder.ENGINE, Category.REDUCE_BUFFERS): _smaller_bucket,
    **{(holder, Category.PARAMETERS): _divide_parameters for holder in _OWNERS},
    **{(holder, Category.GRADIENTS): _divide_gradients for holder in _OWNERS},
    **{(holder, state): _divide_states for holder in _OWNERS for state in _STATES},
}
"""The first holder of a category is the usual one."""
