"""Accounts of what is no model state: communication buffers, gathered parameters, activations, logits, temporaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from zerobench.errors import UserError
from zerobench.formulas.activations import Activations, Shape, activations, chunk_rows, trial_shape
from zerobench.formulas.deepspeed import Setting
from zerobench.formulas.deepspeed.stage_0 import ALLREDUCE_ELEMENTS
from zerobench.formulas.deepspeed.stage_3 import persistent_elements
from zerobench.formulas.tensors import blocks_are_linear
from zerobench.records import Category, Phase, Place
from zerobench.report.explain import fully_sharded
from zerobench.report.explain.terms import Account, Term, account, of_elements, of_parameters, of_partition
from zerobench.report.labels import brief
from zerobench.spec.parameters import count_parameters
from zerobench.spec.recomputation import Checkpointing, recomputed_blocks
from zerobench.spec.trial import CrossEntropy, Offload, TrialSpec

_NORM_BYTES = 8
"""get_norm_dtype() is fp64 (runtime/utils.py)."""


@dataclass(frozen=True)
class Asked:
    """What an account is a function of."""

    spec: TrialSpec
    setting: Setting
    phase: Phase
    place: Place


def work_accounts(asked: Asked, category: Category) -> Iterator[Account]:
    """What may lie in `category` within a phase; nothing for a category without a closed form."""
    make = _BY_CATEGORY.get(category)
    if make is not None:
        yield from make(asked)


def bucket_terms(setting: Setting) -> Account:
    """The reduce bucket, or two with overlap_comm at stages 1 and 2 (setup_buckets; _setup_for_real_optimizer)."""
    case = setting.case
    if not case.stage or not case.bucket_elements:
        return ()
    pair = case.stage < 3 and bool(case.zero("overlap_comm"))
    count, element = (2 if pair else 1), case.bucket_bytes // case.bucket_elements
    each = f"reduce_bucket_size {brief(case.bucket_elements)} x {element} bytes"
    return account(Term(count * case.bucket_bytes, f"{each} x 2 (overlap_comm)" if pair else each))


def _reduce_buffers(asked: Asked) -> Iterator[Account]:
    setting, case = asked.setting, asked.setting.case
    if asked.spec.strategy == fully_sharded.STRATEGY:
        yield from fully_sharded.reducing(asked.spec, setting)
        return
    if not case.stage:
        for fill in _fills(setting, ALLREDUCE_ELEMENTS):
            yield account(of_elements(case.element, fill, "gradients flattened into one copy to be all-reduced"))
        return
    bucket = bucket_terms(setting)
    moved = None
    if setting.offloads and case.stage < 3:
        moved = of_elements(case.element, setting.largest_tensor, "a buffer for the largest gradient, on its way")
    yield account(*bucket, moved)
    yield account(moved)
    copies = ("the bucket's content copied to be reduced", "and once more, for gloo")
    for fill in _fills(setting, case.bucket_elements):
        copy = of_elements(case.element, fill, copies[0])
        yield account(*bucket, moved, copy)
        yield account(*bucket, moved, copy, of_elements(case.element, fill, copies[1]))


def _fills(setting: Setting, limit: int) -> list[int]:
    """What lies in the bucket each time that it is reduced, gradients coming in reverse order; the largest first."""
    fills, fill = set(), 0
    for tensor in reversed(setting.tensors):
        if fill + tensor > limit:
            fills.add(fill)
            fill = 0
        fill += tensor
    return sorted({*fills, fill} - {0}, reverse=True)


def _gathered(asked: Asked) -> Iterator[Account]:
    """partitioned_param_coordinator.py, _fetch_sub_module_impl: what stage 3 has gathered and not yet released."""
    setting, case = asked.setting, asked.setting.case
    if asked.spec.strategy == fully_sharded.STRATEGY:
        yield from fully_sharded.gathered(asked.spec, case.element)
    if case.stage != 3:
        return
    element, kept = case.element, persistent_elements(setting)
    held = _held_by_autograd(asked)
    if held is not None:
        yield account(held)
        yield account(held, _cut(setting))
        return
    yield from live_accounts(setting)
    yield _all_gathered(setting)
    yield account(of_elements(element, kept, "small ones that stay gathered (stage3_param_persistence_threshold)"))
    yield account(of_elements(element, setting.largest_tensor, "the largest tensor"))
    yield account(of_elements(element, 2 * setting.largest_tensor, "the largest tensor, twice while cut"))


def live_accounts(setting: Setting) -> Iterator[Account]:
    """As many parameters as stage 3 keeps gathered at the most; and with what is being cut from its buffer."""
    most = int(setting.case.zero("stage3_max_live_parameters"))
    limit = f"stage3_max_live_parameters {brief(most)}"
    is_all = most >= setting.num_params
    live = _all_gathered(setting) if is_all else account(of_elements(setting.case.element, most, limit))
    yield live
    yield account(*live, _cut(setting))


def _all_gathered(setting: Setting) -> Account:
    most = brief(int(setting.case.zero("stage3_max_live_parameters")))
    return of_parameters(setting, setting.case.element, f"all of them (stage3_max_live_parameters {most})")


def _cut(setting: Setting) -> Term:
    prefetched = int(setting.case.zero("stage3_prefetch_bucket_size"))
    twice = (
        f"prefetched ones a second time, while cut from their buffer (stage3_prefetch_bucket_size {brief(prefetched)})"
    )
    return of_elements(setting.case.element, min(prefetched, setting.num_params), twice)


def _held_by_autograd(asked: Asked) -> Term | None:
    """Weights that a backward pass of torch's own linear layers needs (ds_config/departures.py); None where DeepSpeed's
    are used, where blocks are computed again, and where the model's parts are not known.
    """
    counts = count_parameters(asked.spec.model)
    holds = not asked.setting.case.replaces_linear and blocks_are_linear(asked.spec.model)
    if not holds or asked.spec.activation_checkpointing or counts is None:
        return None
    head = asked.setting.tensors[0] if asked.setting.tied_head else counts.head
    elements = counts.attention + counts.mlp + head
    words = "weights of nn.Linear that autograd holds for backward (memory_efficient_linear false)"
    return of_elements(asked.setting.case.element, elements, words)


def _gathering(asked: Asked) -> Iterator[Account]:
    if asked.spec.strategy == fully_sharded.STRATEGY:
        yield from fully_sharded.gathering(asked.spec, asked.setting.case.element)


def _activations(asked: Asked) -> Iterator[Account]:
    """Korthikanti et al. 2022 (arXiv 2205.05198), or the tally of transformers' layers (formulas/activations.py)."""
    kept = activations(asked.spec)
    outside = Term(kept.outside_layers_bytes, "what lies outside the layers")
    again = Term(kept.recomputed_bytes, "one layer, computed again")
    for layers in range(kept.num_layers, 0, -1):
        held = list(_held_layers(asked.spec.activation_checkpointing, kept, layers))
        yield account(*held, outside)
        if asked.phase is Phase.BACKWARD:
            yield account(*held)
            yield account(*held, again)
            yield account(*held, outside, again)


def _held_layers(checkpointing: Checkpointing, kept: Activations, layers: int) -> Iterator[Term]:
    """What the first `layers` layers hold: those that are run again their inputs, the others all of it."""
    of = "" if layers == kept.num_layers else f" of {kept.num_layers}"
    inputs = recomputed_blocks(checkpointing, layers)
    kinds = (
        (inputs, kept.checkpoint_bytes, kept.checkpoint_words),
        (layers - inputs, kept.per_layer_bytes, "what a layer keeps for backward"),
    )
    for number, each, what in kinds:
        if number:
            yield Term(number * each, f"{what}, {each:,} bytes x {number}{of} layers")


def _logits(asked: Asked) -> Iterator[Account]:
    """ForCausalLMLoss of transformers, loss/loss_utils.py (formulas/activations.py, logits_bytes)."""
    shape = trial_shape(asked.spec)
    entries = shape.tokens * shape.vocab_size
    labels = Term(8 * shape.tokens, f"labels: 8 bytes x {shape.tokens:,} tokens")
    if asked.spec.cross_entropy.is_chunked:
        yield from _chunk(shape, labels)
        return
    is_backward = asked.phase is Phase.BACKWARD
    own_type = asked.spec.cross_entropy is CrossEntropy.MODEL_DTYPE and shape.element < 4
    for words, each in _LOGITS_OF_OWN_TYPE[is_backward] if own_type else _LOGITS[is_backward]:
        size = each or shape.element
        text = f"{words}: {size} bytes x {shape.tokens:,} tokens x {shape.vocab_size:,} words"
        yield account(Term(size * entries, text), labels)
        yield account(Term(size * entries, text))


def _chunk(shape: Shape, labels: Term) -> Iterator[Account]:
    """One chunk of tokens at a time (formulas/activations.py, chunked_logits_bytes)."""
    rows = chunk_rows(shape.tokens, shape.hidden_size, shape.vocab_size)
    words = f"{rows:,} tokens of a chunk x {shape.vocab_size:,} words"
    logits = Term(4 * rows * shape.vocab_size, f"logits in fp32: 4 bytes x {words}")
    size = shape.element
    own = Term(size * rows * shape.vocab_size, f"logits in the model's type: {size} bytes x {words}")
    yield account(logits, own if size < 4 else None, labels)
    yield account(logits, labels)
    yield account(own)  # Liger's kernel works in place


_LOGITS = {
    False: (
        ("fp32 log-probabilities", 4),
        ("logits in the model's type", 0),
        ("logits in fp32 and log-probabilities", 8),
        ("logits, in fp32 too, and log-probabilities", 10),
    ),
    True: (
        ("fp32 log-probabilities and two gradients of theirs", 12),
        ("log-probabilities and their gradient in fp32", 8),
        ("fp32 log-probabilities", 4),
        ("the gradient of the logits", 0),
        ("the gradient of the logits in 16 bits and in fp32", 6),
    ),
}
"""By whether it is backward: what lies there, and its bytes for each word of each token; 0 is the model's element."""

_LOGITS_OF_OWN_TYPE = {
    False: (("logits and log-probabilities in 16 bits", 4), ("log-probabilities in 16 bits", 2)),
    True: (
        ("log-probabilities and two gradients of theirs in 16 bits", 6),
        ("log-probabilities and their gradient in 16 bits", 4),
        ("log-probabilities, or the gradient of the logits, in 16 bits", 2),
    ),
}
"""The same where the loss is taken in the model's type, of 16 bits."""


def _temporaries(asked: Asked) -> Iterator[Account]:
    setting = asked.setting
    largest = max(setting.parts) if setting.case.stage == 3 else _largest_own(setting)
    norm = account(of_elements(_NORM_BYTES, largest, "a gradient's norm, taken in fp64"))
    if asked.place is Place.DEVICE and setting.case.stage and (asked.phase is Phase.STEP) != setting.offloads:
        yield norm
    if asked.phase is Phase.STEP and setting.offloads == (asked.place is Place.HOST):
        yield from _update(asked)


def _largest_own(setting: Setting) -> int:
    return max((inside for _, inside in setting.own_tensors), default=0)


def _update(asked: Asked) -> Iterator[Account]:
    """The optimizer's own: torch/optim/adam.py; and at stage 0 the fp32 gradients that are clipped."""
    setting = asked.setting
    updated = {
        0: setting.tensors,
        3: (setting.sub_group,),
    }.get(setting.case.stage, (setting.flat_partition,))
    on_host = asked.place is Place.HOST
    nbytes = setting.update_temporaries(updated, on_host=on_host)
    elements = sum(updated) if setting.on_gpu and not on_host else max(updated)
    yield account(of_elements(nbytes // elements, elements, f"temporaries of the {setting.optimizer} step"))
    if setting.case.stage == 0:
        yield of_parameters(setting, 4, "fp32 copies made in the step")


def _inputs(asked: Asked) -> Iterator[Account]:
    tokens = asked.spec.micro_batch_size * asked.spec.sequence_length * asked.spec.gradient_accumulation_steps
    yield account(Term(8 * tokens, f"token ids: 8 bytes x {tokens:,} tokens"))


def _staging(asked: Asked) -> Iterator[Account]:
    """stage_1_and_2.py, __init__: param_buffer_of_bit16_for_cpu_offload_groups, temp_grad_buffer_for_cpu_offload."""
    setting = asked.setting
    if asked.place is Place.HOST and setting.offloads and setting.case.stage < 3:
        own = of_partition(setting, setting.case.element, "the updated partition on its way to the device")
        yield account(*own, of_elements(setting.case.element, setting.largest_tensor, "the largest gradient"))


def _pinned(asked: Asked) -> Iterator[Account]:
    """swap_tensor/optimizer_utils.py, OptimizerSwapper; partitioned_param_swapper.py, _configure_aio."""
    setting, case = asked.setting, asked.setting.case
    states = params = None
    if case.offload_optimizer is Offload.NVME:
        count = int(case.zero("offload_optimizer.buffer_count"))
        states = of_elements(4, count * setting.sub_group, f"{count} buffers to swap optimizer states")
    if case.offload_param is Offload.NVME:
        count, each = int(case.zero("offload_param.buffer_count")), int(case.zero("offload_param.buffer_size"))
        params = of_elements(case.element, count * each, f"{count} buffers to swap parameters")
    yield from (account(states, params), account(states), account(params))


_BY_CATEGORY: Mapping[Category, Callable[[Asked], Iterator[Account]]] = {
    Category.REDUCE_BUFFERS: _reduce_buffers,
    Category.GATHERED_PARAMETERS: _gathered,
    Category.ALL_GATHER_BUFFERS: _gathering,
    Category.ACTIVATIONS: _activations,
    Category.LOGITS_AND_LOSS: _logits,
    Category.TEMPORARIES: _temporaries,
    Category.INPUTS: _inputs,
    Category.STAGING: _staging,
    Category.PINNED_BUFFERS: _pinned,
}


def has_dimensions(spec: TrialSpec) -> bool:
    """Whether the model's config gives the sizes that the accounts of a pass need."""
    try:
        trial_shape(spec)
    except UserError:
        return False
    return True
