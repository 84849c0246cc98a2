"""What makes a category as large as it is, in a phrase, and what would make it smaller, from the trial's own settings.

A phrase states a formula only where the ledger's bytes are what it gives (within 2%, for padding and rounding); else
it says who holds the largest part of it by the record, or, of records that do not have that, names the settings that
the category depends on and claims nothing of how much. The figures of DeepSpeed are those of
zerobench.estimate.memory.deepspeed, which names the source of each.
"""

from collections.abc import Callable, Mapping

from zerobench.common.units import format_count
from zerobench.common.vocabulary import Category
from zerobench.config.deepspeed.case import Case
from zerobench.config.models.architecture import dimensions
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.time.collectives import bytes_per_element, trained_bytes_per_element
from zerobench.records.records import PeakPart
from zerobench.records.trials import Trial, case_of, num_params, num_trained
from zerobench.report.explain.held_parts import held_part
from zerobench.report.words.labels import brief

_CLOSE = 0.02

MOMENTS = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
"""What Adam keeps in fp32, four bytes a parameter each."""


def cause(trial: Trial, category: Category, nbytes: int, alike: int = 1, part: PeakPart | None = None) -> str | None:
    """What makes `category` of `trial` as large as `nbytes`; None where nothing is known of it.

    `alike`: how many categories of this kind are taken together, each of them as large. `part`: the largest part of it
    in the record.
    """
    spec, case = trial.spec, case_of(trial)
    held = None if part is None else held_part(part)
    if category in {Category.PARAMETERS, Category.GRADIENTS, *MOMENTS}:
        return _model_states(trial, category, nbytes, alike) or held
    if category is Category.REDUCE_BUFFERS:
        return held if case is None else _reduce_buffers(case, nbytes, held)
    if category is Category.GATHERED_PARAMETERS:
        return held or (None if case is None or case.stage != 3 else _gathered(case))
    say = _BY_WORK.get(category)
    phrases = [None if say is None else say(spec, nbytes), held]
    return "; ".join(phrase for phrase in phrases if phrase) or None


def _model_states(trial: Trial, category: Category, nbytes: int, alike: int) -> str | None:
    """`2 bytes x 6.74 B parameters / 8 ranks`, whole or divided, whichever the ledger's bytes are."""
    spec, whole = trial.spec, num_params(trial)
    count = (category is not Category.PARAMETERS and num_trained(trial)) or whole
    if not count:
        return None
    own = trained_bytes_per_element(spec) if category is Category.GRADIENTS else bytes_per_element(spec.precision)
    element = alike * (4 if category in MOMENTS else own)
    product = f"{element} bytes x {format_count(count)} {'' if count == whole else 'trained '}parameters"
    if spec.world_size > 1 and _is(nbytes, element * count / spec.world_size):
        return f"{product} / {spec.world_size} ranks"
    return product if _is(nbytes, element * count) else None


def reduce_buckets(case: Case, nbytes: int) -> int | None:
    """How many whole reduce buckets `nbytes` are: one, or two with overlap_comm; None where they are neither.

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
    return abs(nbytes - predicted) <= _CLOSE * predicted
