"""Causes of a category's size, in a phrase: the ZeRO paper's terms and the reduce bucket, else the recorded holder.

Terms are given only where the recorded bytes are what they give (within 2%, for padding and rounding). A record without
holders gets the settings that the category depends on, and no amounts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zerobench.common.units import format_count
from zerobench.common.vocabulary import Category, Phase
from zerobench.config.deepspeed.case import Case
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.derived.strategy import paper_stage
from zerobench.config.derived.zero_paper import shares
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.clock.collectives import bytes_per_element, trained_bytes_per_element
from zerobench.records.records import PeakPart
from zerobench.records.trials import Trial, case_of, num_params, num_trained
from zerobench.report.explain.held_parts import held_part
from zerobench.report.words.labels import brief

CLOSE = 0.02
"""Largest relative distance at which a term counts as the cause."""


class Term(NamedTuple):
    """One summand of a category's bytes."""

    nbytes: int
    words: str
    source: str = ""
    """File and function that allocate it; empty where the record or the closed form has none."""


MOMENTS = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
"""What Adam keeps in fp32, four bytes a parameter each."""


def cause(trial: Trial, category: Category, nbytes: int, alike: int = 1, part: PeakPart | None = None) -> str | None:
    """Return the cause of `nbytes` of `category`; None where none is known.

    `alike`: how many categories of this kind are taken together, each of them as large. `part`: the largest part of it
    in the record.
    """
    spec, case = trial.spec, case_of(trial)
    held = None if part is None else held_part(part)
    if category in {Category.PARAMETERS, Category.GRADIENTS, *MOMENTS}:
        states = _model_states(trial, category, nbytes // alike)
        return held if states is None else states.words(format_count(states.count), alike)
    if category is Category.REDUCE_BUFFERS:
        return held if case is None else _reduce_buffers(case, nbytes, held)
    if category is Category.GATHERED_PARAMETERS:
        return held or (None if case is None or case.stage != 3 else _gathered(case))
    say = _BY_WORK.get(category)
    phrases = [None if say is None else say(spec, nbytes), held]
    return "; ".join(phrase for phrase in phrases if phrase) or None


@dataclass(frozen=True)
class _States:
    """Model states as the ZeRO paper has them: bytes an element times parameters, whole or divided among ranks."""

    element: int
    count: int
    kind: str
    ranks: int

    @property
    def nbytes(self) -> int:
        return round(self.element * self.count / self.ranks)

    def words(self, count: str, alike: int = 1) -> str:
        """Return `2 bytes x 6.74 B parameters / 8 ranks`, with `count` as it is to be written."""
        divided = f" / {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{alike * self.element} bytes x {count} {self.kind}{divided}"


def _model_states(trial: Trial, category: Category, nbytes: int) -> _States | None:
    """Return the term whose bytes are `nbytes`; None where none is, or where the category is no model state."""
    spec, whole = trial.spec, num_params(trial)
    count = (category is not Category.PARAMETERS and num_trained(trial)) or whole
    if not count or category not in {Category.PARAMETERS, Category.GRADIENTS, *MOMENTS}:
        return None
    own = trained_bytes_per_element(spec) if category is Category.GRADIENTS else bytes_per_element(spec.precision)
    element = 4 if category in MOMENTS else own
    kind = "parameters" if count == whole else "trained parameters"
    possible = [_States(element, count, kind, ranks) for ranks in (spec.world_size, state_shard_size(spec), 1)]
    return next((states for states in possible if _is(nbytes, states.nbytes)), None)


def state_term(trial: Trial, category: Category, nbytes: int, phase: Phase) -> Term | None:
    """Return the ZeRO paper's term of `category` in full digits; None where its bytes are not `nbytes`.

    DeepSpeed's stages 0 to 2 copy and cast gradients for the update, of which the paper has no term.
    """
    if (category, phase) == (Category.GRADIENTS, Phase.STEP) and trial.spec.zero_stage in {0, 1, 2}:
        return None
    if not trial.spec.knows("precision"):
        return None
    states = _model_states(trial, category, nbytes) or _share(trial, category, nbytes)
    return None if states is None else Term(states.nbytes, states.words(f"{states.count:,}"))


def _share(trial: Trial, category: Category, nbytes: int) -> _States | None:
    """Return the rank's share of parameters or moments by the paper, which is there beside whatever else `nbytes` has;
    None where it is larger.
    """
    stage, ranks, count = paper_stage(trial.spec), state_shard_size(trial.spec), num_params(trial)
    if stage is None or not count or not trial.spec.trains_all or category not in {Category.PARAMETERS, *MOMENTS}:
        return None
    parts = shares(stage, ranks)
    is_moment = category in MOMENTS
    element = 4 if is_moment else bytes_per_element(trial.spec.precision)
    states = _States(element, count, "parameters", parts.optimizer if is_moment else parts.parameters)
    return states if states.nbytes <= nbytes else None


def bucket_term(trial: Trial, category: Category, nbytes: int) -> Term | None:
    """Return the reduce buckets of a trial of DeepSpeed's; None where `nbytes` of `category` are not such."""
    case = case_of(trial) if category is Category.REDUCE_BUFFERS else None
    count = reduce_buckets(case, nbytes) if case is not None and case.stage else None
    if case is None or count is None:
        return None
    size = f"reduce_bucket_size {brief(case.bucket_elements)} x {case.bucket_bytes // case.bucket_elements} bytes"
    return Term(count * case.bucket_bytes, size if count == 1 else f"{count} x {size} (overlap_comm)")


def reduce_buckets(case: Case, nbytes: int) -> int | None:
    """Return the number of whole reduce buckets in `nbytes`: one, or two with overlap_comm; None of other sizes.

    Two buckets are kept at stages 1 and 2 (stage_1_and_2.py, setup_buckets), one at stage 3.
    """
    return next((count for count in (1, 2) if case.bucket_bytes and _is(nbytes, count * case.bucket_bytes)), None)


def _reduce_buffers(case: Case, nbytes: int, held: str | None) -> str | None:
    count = reduce_buckets(case, nbytes) if case.stage else None
    if count is None:
        return held or (f"reduce_bucket_size {brief(case.bucket_elements)}" if case.stage else None)
    many = "its reduce bucket" if count == 1 else "its two reduce buckets (overlap_comm)"
    element = case.bucket_bytes // case.bucket_elements
    return f"{many} of {brief(case.bucket_elements)} elements of {element} bytes (reduce_bucket_size)"


def _gathered(case: Case) -> str:
    names = ("stage3_max_live_parameters", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    return ", ".join(f"{name} {brief(int(case.zero(name)))}" for name in names)


def _activations(spec: TrialSpec, _nbytes: int) -> str:
    checkpointing = "with" if spec.activation_checkpointing else "without"
    return f"{_batch(spec)}, {checkpointing} activation checkpointing"


def _batch(spec: TrialSpec) -> str:
    return f"{spec.micro_batch_size} x {spec.sequence_length:,} tokens per micro batch"


def _logits(spec: TrialSpec, nbytes: int) -> str:
    vocabulary = dimensions(spec.model).vocab_size
    if not vocabulary:
        return _batch(spec)
    each = nbytes / (vocabulary * spec.micro_batch_size * spec.sequence_length)
    return f"{each:.3g} bytes x vocabulary of {vocabulary:,} x {_batch(spec)}"


_BY_WORK: Mapping[Category, Callable[[TrialSpec, int], str]] = {
    Category.ACTIVATIONS: _activations,
    Category.LOGITS_AND_LOSS: _logits,
    Category.INPUTS: lambda spec, _: _batch(spec),
    Category.ALLOCATOR_ROUNDING: lambda _spec, _: "allocator rounding of requested sizes",
}


def _is(nbytes: float, predicted: float) -> bool:
    return abs(nbytes - predicted) <= CLOSE * predicted
