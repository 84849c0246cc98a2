"""What makes a category as large as it is, in a phrase, and what would make it smaller, from the trial's own settings.

A phrase states a formula only where the ledger's bytes are what it gives (within 2%, for padding and rounding); else
it names the settings that the category depends on and claims nothing of how much. The figures of DeepSpeed are those
of zerobench.formulas.deepspeed, which names the source of each.
"""

from collections.abc import Callable, Mapping

from zerobench.ds_config.case import Case
from zerobench.records import Category
from zerobench.report.labels import brief
from zerobench.report.step_time.collectives import bytes_per_element, trained_bytes_per_element
from zerobench.report.trials import Trial, case_of, num_params, num_trained
from zerobench.spec.architecture import dimensions
from zerobench.spec.roles import num_servers
from zerobench.spec.strategy import STRATEGIES, paper_stage
from zerobench.spec.trial import TrialSpec
from zerobench.units import format_bytes, format_count

_CLOSE = 0.02
SMALLER_BUCKET = 50_000_000
"""A reduce bucket of a tenth of DeepSpeed's default."""

MOMENTS = (Category.MASTER_WEIGHTS, Category.FIRST_MOMENT, Category.SECOND_MOMENT)
"""What Adam keeps in fp32, four bytes a parameter each."""


_MODEL_STATES = {Category.PARAMETERS, Category.GRADIENTS, Category.OTHER_OPTIMIZER_STATES, *MOMENTS}


def cause(trial: Trial, category: Category, nbytes: int, alike: int = 1) -> str | None:
    """What makes `category` of `trial` as large as `nbytes`; None where its settings say nothing of it.

    `alike`: how many categories of this kind are taken together, each of them as large.
    """
    spec, case = trial.spec, case_of(trial)
    if category in {Category.PARAMETERS, Category.GRADIENTS, *MOMENTS}:
        return _model_states(trial, category, nbytes, alike)
    if category is Category.REDUCE_BUFFERS:
        return None if case is None else _reduce_buffers(case, nbytes)
    if category is Category.GATHERED_PARAMETERS:
        return None if case is None or case.stage != 3 else _gathered(case)
    say = _BY_WORK.get(category)
    return None if say is None else say(spec, nbytes)


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


def _reduce_buffers(case: Case, nbytes: int) -> str | None:
    count = reduce_buckets(case, nbytes) if case.stage else None
    if count is None:
        return f"reduce_bucket_size {brief(case.bucket_elements)}" if case.stage else None
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


def remedy(trial: Trial, category: Category, nbytes: int) -> str | None:
    """Settings that make `category` smaller, as a phrase; None where the trial has used them up or there is none."""
    spec, case = trial.spec, case_of(trial)
    stage = paper_stage(spec) or 0
    if category in _MODEL_STATES and (otherwise := _beyond_stages(spec)):
        return otherwise
    if category is Category.REDUCE_BUFFERS:
        return smaller_bucket(case, nbytes)
    if category is Category.ACTIVATIONS and not spec.activation_checkpointing:
        smaller = " or a smaller micro_batch_size" if spec.micro_batch_size > 1 else ""
        return f"activation_checkpointing: true{smaller}"
    if category in {Category.ACTIVATIONS, Category.LOGITS_AND_LOSS}:
        return "a smaller micro_batch_size" if spec.micro_batch_size > 1 else "a shorter sequence_length"
    if category in {*MOMENTS, Category.OTHER_OPTIMIZER_STATES} and spec.offload_optimizer == "none":
        dividing = ["stage 1 or higher"] if stage == 0 and spec.world_size > 1 else []
        return " or ".join([*dividing, "offload_optimizer: cpu" if stage else "offload_optimizer: cpu from stage 1 on"])
    if category is Category.PARAMETERS and spec.offload_param == "none":
        dividing = ["stage 3"] if stage < 3 and spec.world_size > 1 else []
        return " or ".join([*dividing, "offload_param: cpu" if stage == 3 else "offload_param: cpu at stage 3"])
    if category is Category.GRADIENTS and stage < 2 and spec.world_size > 1:
        return "stage 2 or higher"
    if category is Category.GATHERED_PARAMETERS and stage == 3:
        if case is not None and not case.replaces_linear:
            return "memory_efficient_linear: true, so that autograd holds no gathered weights"
        return "a smaller stage3_max_live_parameters or stage3_prefetch_bucket_size"
    return None


def _beyond_stages(spec: TrialSpec) -> str | None:
    """What makes model states smaller where no ZeRO stage can be chosen: a server has them whole, and ranks that divide
    the model have divided them.
    """
    if num_servers(spec):
        return "a strategy that partitions states (zero1 to zero3, fsdp)"
    info = STRATEGIES.get(spec.strategy)  # a user's own script has another name
    return None if info is None or info.divides_batch else "more ranks to partition the model over"


def smaller_bucket(case: Case | None, nbytes: int) -> str | None:
    """What the reduce buffers would be with a smaller bucket; None where they are no bucket, or a small one."""
    if case is None or not case.stage or reduce_buckets(case, nbytes) is None or case.bucket_elements <= SMALLER_BUCKET:
        return None
    would_be = nbytes * SMALLER_BUCKET / case.bucket_elements
    return f"reduce_bucket_size {brief(SMALLER_BUCKET)} ({format_bytes(would_be)})"
