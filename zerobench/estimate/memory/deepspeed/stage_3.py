"""Stage 3: every model state partitioned tensor by tensor (runtime/zero/stage3.py and parameter_offload.py, 0.19.8).

Each tensor is padded to the number of ranks. The reduce bucket and a buffer for the partition's gradients stand from
initialisation on. Parameters are gathered for use: in the first pass each module's alone, afterwards ahead of their
use, a prefetch bucket at every module, until stage3_max_live_parameters are there. How far that gets is played where
the modules' order is known (gathers.py), and an upper bound elsewhere.

hpZ's second copy (zerobench.config.derived.zeropp) is there from zero.Init on, is dropped after each update, and
is made again of each tensor when it is released: in forward, or in backward where it stays gathered until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from zerobench.common.units import brief
from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.config.deepspeed.case import Case
from zerobench.config.derived.zeropp import second_copy_elements
from zerobench.config.trial.trial import Offload
from zerobench.estimate.memory.deepspeed.gathers import Held, persistent_numbers
from zerobench.estimate.memory.deepspeed.setting import DRAWN_ELEMENTS, Instants, Setting
from zerobench.estimate.memory.deepspeed.stage_3_offload import kept, kept_updates
from zerobench.estimate.memory.deepspeed.swapping import aligned, is_swappable, swaps_optimizer
from zerobench.estimate.memory.terms.terms import Bytes, Term, Terms, add, hold, of_elements

_LATE = 0.9
"""Of forward's modules, from which on most of what backward needs is there beside what is gathered."""
_NORM_ELEMENTS = 250_000_000
"""Elements that an offloaded gradient's norm is taken over at a time (_constant_buffered_norm2)."""


def device(setting: Setting, step: StepKind) -> Instants:
    """The device's bytes; what is offloaded is not among them."""
    traced = step is StepKind.STEADY or setting.case.micro_steps > 1
    is_played = traced and setting.gathers is not None
    by_autograd = 0 if is_played and setting.coded else setting.linear_elements
    live = max(live_elements(setting) if traced else 0, by_autograd)
    alone = _held(setting, None if step is StepKind.FIRST else step)
    copied = _released_copy(setting, step)
    held = add(alone, copied if step is StepKind.FIRST else _released_copy(setting, step, live))
    gradient = setting.first_gradient_whole
    bucket = int(setting.case.zero("stage3_prefetch_bucket_size"))
    ahead = add(_live(setting, live), _cut(setting, min(bucket, live_elements(setting))))
    if is_played and setting.gathers is not None and _is_known(setting):
        ahead = _at(setting, _fullest(setting, setting.gathers.held[Phase.FORWARD]))
    largest = _gathered(setting, max(setting.model), "the largest tensor")
    in_head = _gathered(setting, setting.head, "the head") if setting.head > live else _live(setting, live)
    return Instants(
        init=_init(setting),
        gathering=add(held, ahead if traced or setting.linear_elements else largest),
        forward=add(held, in_head if setting.loss_in_head else _live(setting, live)),
        begun=add(held, _live(setting, live)),
        first_gradient=add(held, _live(setting, live) if setting.loss_in_head else in_head, gradient),
        bucketed=add(held, _in_backward(setting, live, traced=traced), gradient, _first_handed_on(setting)),
        reduction=_reduction(setting, add(alone, copied), live),
        filled=_filled(setting, add(alone, copied), live),
        backward_end=_backward_end(setting, add(alone, copied), traced=traced),
        step=_step(setting, step, _released_copy(setting, None)),
    )


def _released_copy(setting: Setting, step: StepKind | None, kept: int = 0) -> Bytes:
    """The copy of hpZ of all tensors that have been released, when so many elements stay gathered; nothing without hpZ.

    Tensors that stay gathered, being small, have one until the first update, and then within updates alone, which begin
    by releasing everything (stage3.py, step).
    """
    size = int(setting.case.zero("zero_hpz_partition_size"))
    if size <= 1:
        return {}
    world = setting.case.world_size
    whole = second_copy_elements(setting.model, world, size)
    if step is StepKind.STEADY:
        small = second_copy_elements(persistent_tensors(setting), world, size)
        gone = -(-kept // size) if setting.case.micro_steps == 1 else 0
        whole -= max(small, min(gone, whole))
    what, source = f"hpZ's second copy among {size} ranks", "partition_parameters.py, _partition_param_sec"
    return of_elements(Category.PARAMETERS, setting.case.element, whole, what, source)


def persistent_elements(setting: Setting) -> int:
    """Elements that stay gathered on every rank."""
    return sum(persistent_tensors(setting))


def persistent_tensors(setting: Setting) -> tuple[int, ...]:
    """Tensors that stay gathered on every rank: those up to stage3_param_persistence_threshold.

    parameter_offload.py, mark_persistent_parameters; stage3_model_persistence_threshold caps their sum.
    """
    return tuple(setting.model[number] for number in persistent_numbers(setting.case, setting.model))


def _held(setting: Setting, step: StepKind | None) -> Terms:
    """Device memory for the whole run; `step` None is before the first step's end."""
    case, elements = setting.case, setting.sharded
    parameters = elements if case.offload_param is Offload.NONE else 0
    bucket = setting.bucket("stage3.py, _setup_for_real_optimizer") if case.zero("contiguous_gradients") else {}
    held = add(setting.share(Category.PARAMETERS, case.element, parameters), bucket)
    if setting.offloads:
        return add(held, kept(setting, step))
    source = "stage3.py, grad_partitions_flat_buffer"
    gradients = setting.share(Category.GRADIENTS, case.gradient_element, elements, source=source)
    return add(held, gradients, setting.master_and_moments(setting.sub_groups, step))


def _init(setting: Setting) -> tuple[Bytes, ...]:
    """The model where it is built whole, or its largest tensor as it is drawn; then _create_fp32_partitions casts a
    sub-group and clones it, and initialize_optimizer_states fills zero gradients.
    """
    return (*_built_whole(setting), *_drawn(setting), *_partitioned(setting))


def _drawn(setting: Setting) -> tuple[Bytes, ...]:
    """All parts, a tied head's own among them, and the largest tensor gathered, whose values are drawn in fp32 in
    pieces, of which the last stays until the next is there (zerobench/rank/training/weights.py).
    """
    if not setting.zero_init or setting.coded:
        return ()
    element, largest, tied = setting.case.element, max(setting.model), setting.head if setting.tied_head else 0
    parts = setting.sharded + -(-tied // setting.case.world_size)
    pieces = min(largest, 2 * DRAWN_ELEMENTS)
    return (
        add(
            setting.share(Category.PARAMETERS, element, parts if setting.case.offload_param is Offload.NONE else 0),
            of_elements(Category.GATHERED_PARAMETERS, element, largest, "the largest tensor, to be drawn"),
            of_elements(Category.TEMPORARIES, 4, pieces, "its values, drawn in fp32"),
        ),
    )


def _built_whole(setting: Setting) -> tuple[Bytes, ...]:
    """The whole model, as the first part is cut from it (partition_parameters.py, _convert_to_zero_parameters)."""
    if setting.zero_init:
        return ()
    part = 0 if setting.case.offload_param is not Offload.NONE else -(-setting.model[0] // setting.case.world_size)
    element = setting.case.element
    whole = setting.share(Category.PARAMETERS, element, setting.num_params, "the whole model")
    parts = setting.frozen_parameters(setting.case.world_size)[Category.PARAMETERS] if setting.frozen else 0
    rest = hold(Category.PARAMETERS, element * sum(setting.frozen) - parts, "what is frozen of it, before it is cut")
    return (add(whole, rest, of_elements(Category.PARAMETERS, element, part, "the first part cut from it")),)


def _partitioned(setting: Setting) -> tuple[Bytes, ...]:
    built = add(_held(setting, None), _released_copy(setting, None))
    before = built.of(Category.PARAMETERS, Category.MASTER_WEIGHTS)
    largest = max(setting.tensors)  # create_reduce_and_remove_grad_hooks gathers each that is trained
    part = 0 if setting.case.offload_param is Offload.NONE else -(-largest // setting.case.world_size)
    hooked = add(built, _gathered(setting, largest + part, "the largest tensor, and its part from the host")), built
    if setting.offloads:  # a blocking copy to the host is cast there (aten/src/ATen/native/cuda/Copy.cu)
        largest = max(setting.kept, default=0)
        kept_one = of_elements(Category.MASTER_WEIGHTS, 4, largest, "a kept sub-group cast to fp32, to be cloned")
        return add(before, kept_one), *hooked
    cast = setting.sub_group if setting.case.element == 2 else 0
    return (
        add(before, of_elements(Category.MASTER_WEIGHTS, 4, cast, "a sub-group cast to fp32, to be cloned")),
        add(before, of_elements(Category.GRADIENTS, 4, setting.sub_group, "zeros in fp32 for a sub-group")),
        *hooked,
    )


def live_elements(setting: Setting) -> int:
    """Elements gathered at forward's end: what the prefetch has brought, or what backward uses again soon; at most,
    where the modules' order is not known.
    """
    if setting.gathers is not None:
        return setting.gathers.left
    return min(setting.model_elements, max(live_limit(setting.case)[0], persistent_elements(setting)))


def live_limit(case: Case) -> tuple[int, str]:
    """Return the elements that may be gathered at forward's end, and the key that allows them.

    partitioned_param_coordinator.py, _fetch_sub_module_impl: prefetching goes on until stage3_max_live_parameters are
    there. __params_to_release: a tensor is kept if no more than stage3_max_reuse_distance elements are used before it
    is used again, those after it twice; however many are there.
    """
    ahead = int(case.zero("stage3_max_live_parameters")) if int(case.zero("stage3_prefetch_bucket_size")) else 0
    reuse = int(case.zero("stage3_max_reuse_distance"))
    if ahead >= reuse // 2:
        return ahead, f"stage3_max_live_parameters {brief(ahead)}"
    return reuse // 2, f"half of stage3_max_reuse_distance {brief(reuse)}"


def _gathered(setting: Setting, elements: int, what: str, source: str = "") -> Terms:
    """Gathered parameters; one rank alone uses its partition in place (partition_parameters.py, NoGatherHandle)."""
    in_place = setting.case.world_size == 1 and setting.case.offload_param is Offload.NONE
    element = 0 if in_place else setting.case.element
    return of_elements(Category.GATHERED_PARAMETERS, element, elements, what, source)


def _live(setting: Setting, elements: int) -> Terms:
    """Parameters that stay gathered for use, or are held by autograd."""
    if 0 < elements <= setting.linear_elements:
        what, source = (
            "weights of nn.Linear that autograd holds for backward (memory_efficient_linear false)",
            "linear.py",
        )
        if setting.scales_bytes:
            what, source = "codes that autograd holds for backward, and the head", "bitsandbytes/autograd/_functions.py"
        return _gathered(setting, elements, what, source)
    return _kept_gathered(setting, elements)


def _kept_gathered(setting: Setting, elements: int) -> Terms:
    """Parameters that stay gathered for use: as much as is allowed and the last tensor, or what a module uses."""
    most, limit = live_limit(setting.case)
    what = limit if most > 0 and elements <= most + max(setting.model) else "in use"
    source = "partitioned_param_coordinator.py, _fetch_sub_module_impl"
    if elements < setting.model_elements:
        return _gathered(setting, elements, what, source)
    all_of_them = _gathered(setting, elements, limit, source).get(Category.GATHERED_PARAMETERS, 0)
    words = f"all of them ({limit}): {setting.case.element} bytes x {setting.model_elements:,} parameters"
    return Terms(Term(Category.GATHERED_PARAMETERS, all_of_them, words, source))


def _in_backward(setting: Setting, live: int, *, traced: bool) -> Terms:
    """The most that is gathered when the head has been passed, as far as the modules' order is known."""
    if traced and setting.gathers is not None:
        return _live(setting, max(setting.gathers.after_head, setting.linear_elements - setting.head))
    return _live(setting, live - setting.head) if live > setting.head else _gathered_again(setting)


def _persistent(setting: Setting) -> Terms:
    """Small parameters, which stay gathered."""
    what = "small ones that stay gathered (stage3_param_persistence_threshold)"
    return _gathered(setting, persistent_elements(setting), what, "parameter_offload.py, mark_persistent_parameters")


def _cut(setting: Setting, elements: int) -> Terms:
    """Elements that exist twice, as gathered and as the tensors cut from it, until all of a bucket have been used; the
    coordinator keeps the handle for each tensor.
    """
    ahead = int(setting.case.zero("stage3_prefetch_bucket_size"))
    which, key = ("prefetched ones", f" (stage3_prefetch_bucket_size {brief(ahead)})") if ahead else ("a module's", "")
    what = f"{which} a second time, while cut from their buffer{key}"
    return _gathered(setting, elements, what, "partition_parameters.py, AllGatherCoalescedHandle.wait")


def gathered_in(setting: Setting, phase: Phase) -> Iterator[Terms]:
    """Yield the gathered parameters at each instant of a steady step's `phase` whose modules' order is known; none
    where autograd holds what torch's own linear layers were given.
    """
    if setting.gathers is not None and _is_known(setting):
        for held in setting.gathers.held[phase]:
            yield _at(setting, held)


def _is_known(setting: Setting) -> bool:
    """Return whether what is gathered is all that lies there: torch's own linear layers have autograd hold what they
    got.
    """
    return not setting.linear_elements or setting.coded > 0


def _fullest(setting: Setting, gathered: Mapping[Held, int]) -> Held:
    """The most in forward; where blocks keep what backward needs, in its last modules, when that is there."""
    begin = 0 if setting.block_again else _LATE * max(gathered.values())
    return max((held for held, entered in gathered.items() if entered >= begin), key=sum)


def _at(setting: Setting, held: Held) -> Terms:
    what = "what a block that runs again was multiplied with, which autograd holds"
    if setting.coded:
        what = "codes that autograd holds for backward"
    by_autograd = _gathered(setting, held.by_autograd, what)
    return add(_kept_gathered(setting, held.gathered), by_autograd, _cut(setting, held.twice))


def _reduction(setting: Setting, held: Bytes, live: int) -> tuple[Bytes, ...]:
    """A tied head's gradients; the last content of a bucket, the embedding's gradient in it."""
    fills = setting.filled(setting.case.bucket_elements)
    instants = [_reduced(setting, fills, len(fills) - 1, live)]
    if tied := setting.tied_gradients(3):
        instants.append(add(_embedding(setting), _unswapped_gradients(setting, fills[:-1]), tied))
    return tuple(add(held, instant) for instant in instants)


def _filled(setting: Setting, held: Bytes, live: int) -> dict[int, Bytes]:
    """Return `filled` of Instants: where nothing is gathered ahead, the parameters of a block that runs again."""
    fills = setting.filled(setting.case.bucket_elements)
    passed = list(accumulate(map(sum, fills)))
    again = _gathered_again(setting) if not live else {}
    return {
        passed[number]: add(held, _reduced(setting, fills, number, live), again)
        for number in setting.telling([sum(fill) for fill in fills])
    }


def _gathered_again(setting: Setting) -> Terms:
    return _gathered(setting, setting.block_again, "a block that runs again, which autograd holds")


def _reduced(setting: Setting, fills: Sequence[Sequence[int]], number: int, live: int) -> Terms:
    """A bucket's content, interleaved into a copy to be reduce-scattered (reduce_scatter_coalesced), and handed on."""
    fill, passed = fills[number], sum(map(sum, fills[: number + 1]))
    left = max(min(setting.model_elements - passed * setting.model_elements // setting.num_params, live), 0)
    is_last = number == len(fills) - 1
    limit, element, source = setting.case.bucket_elements, setting.case.element, "comm/coalesced_collectives.py"
    elements = sum(fill) if len(fill) > 1 or fill[0] % setting.case.world_size else 0
    return add(
        _embedding(setting) if is_last else add(_live(setting, left), setting.tied_gradients(1)),
        setting.copied(element, limit, "copy of the bucket for the reduction", source, fill=elements),
        {} if setting.on_gpu else setting.copied(element, limit, "and once more, for gloo", source, fill=elements),
        _unswapped_gradients(setting, fills[:number]),
        _handed_on(setting, fill),
    )


def _embedding(setting: Setting) -> Terms:
    """The embedding stays gathered until backward ends, since its input has no gradient."""
    return _gathered(setting, setting.model[0] if setting.trains_first else 0, "the embedding")


def _handed_on(setting: Setting, fill: Sequence[int]) -> Bytes:
    """The worst of handing a bucket's reduced parts to an offloaded optimizer, one by one: norms are taken on the
    device (_constant_buffered_norm2); what will be swapped is cast there, and stays until all of the bucket is written.

    stage3.py, partition_grads, _offload_grad_partition_at_boundary, _swap_out_offload_fp32_gradients.
    """
    if not setting.offloads:
        return {}
    cast, instants = 0, list[Terms]()
    for part in (-(-tensor // setting.case.world_size) for tensor in reversed(fill)):
        what = "a part of the bucket, copied back to the device"
        back = of_elements(Category.GRADIENTS, setting.case.gradient_element if setting.on_gpu else 0, part, what)
        instants.append(add(_cast(cast), back, setting.norm(min(part, _NORM_ELEMENTS))))
        cast += part if swaps_optimizer(setting) else 0
    return max([*instants, _cast(cast)], key=lambda instant: sum(instant.values()))


def _cast(elements: int) -> Terms:
    return of_elements(Category.GRADIENTS, 4, elements, "the bucket's parts in fp32, until all of them are swapped")


def _backward_end(setting: Setting, held: Bytes, *, traced: bool) -> Bytes:
    """Small parameters stay gathered once DeepSpeed has a trace of the modules."""
    return add(held, _persistent(setting) if traced else {}, _all_unswapped(setting))


def _first_handed_on(setting: Setting) -> Bytes:
    """The head's gradient is reduced at once where it fills the bucket."""
    return (
        _handed_on(setting, [setting.first_gradient]) if setting.first_gradient >= setting.case.bucket_elements else {}
    )


def _unswapped_gradients(setting: Setting, fills: Iterable[Sequence[int]]) -> Bytes:
    """Gradients too small for the swapper wait for the update in fp32, on the device they were reduced on; and those of
    whose end no whole block can be swapped, since that end is a view of all of it.

    swap_tensor/optimizer_utils.py, _adjust_for_misaligned_lengths, unswapped_gradients.
    """
    if not swaps_optimizer(setting):
        return {}
    parts = (-(-tensor // setting.case.world_size) for fill in fills for tensor in fill)
    kept = sum(part for part in parts if not is_swappable(setting, part, 4) or aligned(setting, part, 4) != part)
    return of_elements(Category.GRADIENTS, 4, kept, "in fp32, too small to be swapped or with an end that is")


def _all_unswapped(setting: Setting) -> Bytes:
    return _unswapped_gradients(setting, [setting.tensors])


def _step(setting: Setting, step: StepKind, copied: Bytes) -> tuple[Bytes, ...]:
    """step(): everything is released, sub-groups are updated one after the other, small parameters gathered again."""
    after = _held(setting, step)
    end = add(after, _persistent(setting))
    before = add(_held(setting, None if step is StepKind.FIRST else step), copied)
    if setting.offloads:
        return *kept_updates(setting, before, step), add(after, copied, _all_unswapped(setting)), end
    norm = setting.norm(max(setting.parts))
    return (add(before, norm), *_sub_group_updates(setting, before, step), end)


def _sub_group_updates(setting: Setting, before: Bytes, step: StepKind) -> list[Bytes]:
    """_prepare_fp32_grad_for_sub_group: a flat copy, cast to fp32; then the update, which makes the first moments."""
    element, source = setting.case.gradient_element, "stage3.py, _prepare_fp32_grad_for_sub_group"
    instants: list[Bytes] = []
    for i, group in enumerate(setting.sub_groups):
        flat = of_elements(Category.GRADIENTS, element, group, "a sub-group flattened into one copy", source)
        cast = of_elements(Category.GRADIENTS, 4, group, "a sub-group cast to fp32 for the update", source)
        if element == 4:
            cast, flat = flat, Terms()
        made = setting.moments(setting.sub_groups[:i]) if step is StepKind.FIRST else {}
        instants.append(add(before, made, flat, cast))
        made = setting.moments(setting.sub_groups[: i + 1]) if step is StepKind.FIRST else {}
        instants.append(add(before, made, cast, setting.update_temporaries([group])))
    return instants
