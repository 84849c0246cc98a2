"""Memory of torch's own strategies, in closed form: read in the source of torch 2.13.

DDP: torch/nn/parallel/distributed.py and csrc/distributed/c10d/reducer.cpp. FSDP2: torch/distributed/fsdp/_fully_shard.
Neither needs a configuration: what they are functions of is the trial. Compressing hooks are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from zerobench.common.vocabulary import Category, Phase, StepKind
from zerobench.estimate.memory.deepspeed.setting import DRAWN_ELEMENTS, NOTHING, Instants, Setting
from zerobench.estimate.memory.terms.terms import Bytes, Term, Terms, add, hold, of_elements

_SYNC_BYTES = 250 * 2**20
"""DDP broadcasts the initial weights in flat copies of so many bytes at most (broadcast_bucket_size)."""

_UNEVEN = "what the ranks do not divide evenly"


def ddp_device(setting: Setting, step: StepKind) -> Instants:
    """As the plain loop, with gradients that are there from the first moment to the last: they are DDP's buckets."""
    element, count = setting.trained_element, setting.num_params
    parameters, gradients = (
        setting.share(category, element, count) for category in (Category.PARAMETERS, Category.GRADIENTS)
    )
    masters = {} if element == 4 else setting.master_and_moments(setting.tensors, None)
    built = add(parameters, gradients, masters)
    states = add(built, setting.moments(setting.tensors))
    held = built if step is StepKind.FIRST else states
    # Micro-batches that are not reduced yet find no views into the buckets in the very first step.
    between = gradients if setting.case.micro_steps > 1 and step is StepKind.FIRST else {}
    casts = {} if element == 4 else setting.share(Category.GRADIENTS, 4, count, "their fp32 copies")
    sync = hold(
        Category.TEMPORARIES,
        min(setting.case.element * sum(setting.frozen) + element * count, _SYNC_BYTES),
        "flat copies of the weights, to be broadcast",
    )
    first = add(held, setting.first_gradient_whole, between)
    return Instants(
        init=(add(parameters, sync), built),
        gathering=add(held, between),
        forward=add(held, between),
        first_gradient=first,
        bucketed=first,
        reduction=(add(held, between),),
        backward_end=held,
        step=(add(states, casts, setting.update_temporaries(setting.tensors)), states),
    )


@dataclass(frozen=True)
class Shards:
    """Groups into which FSDP2 cuts the model, gathered together, in elements."""

    root: int
    """Embeddings, last norm and head, gathered once for a whole micro-batch."""
    block: int
    num_blocks: int
    reshards: bool
    """Whether a block's parameters are freed after its forward pass."""
    trained_root: int
    """Of `root`, what has gradients; and of `block`."""
    trained_block: int
    trained_blocks: int
    """Blocks that have anything that is trained; the others of `num_blocks` have none."""
    passed_blocks: int
    """Blocks that are gathered again for backward, which comes to none before all that is trained."""
    widened: bool = False
    """Whether what is trained is in fp32 beside a 16-bit model, each as two elements of what is gathered with it."""

    @property
    def trained(self) -> int:
        """All that has gradients."""
        return self.trained_blocks * self.trained_block + self.trained_root

    @property
    def note(self) -> str:
        """Words on elements that count twice."""
        return " (fp32 ones as two)" if self.widened else ""

    @property
    def whole(self) -> int:
        """All parameters."""
        return self.root + self.num_blocks * self.block

    @property
    def gathered(self) -> int:
        """Elements that stay gathered from the forward to the backward pass."""
        return self.root if self.reshards else self.whole


def fsdp(
    setting: Setting, step: StepKind, shards: Shards, *, offloads: bool, has_copies: bool = False
) -> tuple[Instants, Instants]:
    """Device and host of one rank. Each tensor's part is taken as its elements by the ranks, rounded up.

    FSDP2 pads whole rows (_fsdp_param.py, _init_sharded_param), so a tensor whose first dimension the ranks do not
    divide takes up to a row more. `has_copies`: whether other groups of ranks hold the same parts. What is reduced of
    their gradients then waits for the last micro batch on the device, in the type that it was reduced in
    (_fsdp_collectives.py, foreach_reduce, partial_reduce_output).
    """
    sharded, accumulates = setting.sharded, setting.case.micro_steps > 1

    def in_parts(category: Category, elements: int = sharded) -> Terms:
        return setting.share(category, 4, elements, padding=_UNEVEN)

    built = in_parts(Category.MASTER_WEIGHTS if setting.trained_element == 2 else Category.PARAMETERS)
    states = add(built, setting.moments(setting.parts, padding=_UNEVEN))
    held = built if step is StepKind.FIRST else states
    gradients = in_parts(Category.GRADIENTS)
    update = add(states, gradients, setting.update_temporaries(setting.parts, on_host=offloads))
    init = drawing(setting.case.element, max(setting.model))
    what = "of earlier micro batches, to be summed over the groups"
    waiting = of_elements(Category.GRADIENTS, setting.trained_element, sharded * accumulates * has_copies, what)
    kept, end = add(held, gradients if accumulates and not has_copies else {}), add(held, gradients)
    if offloads:
        summed = hold(Category.REDUCE_BUFFERS, 4 * max(setting.parts) * accumulates, "a gradient's part, to be added")
        host = Instants((built,), kept, kept, kept, kept, (add(end, summed),), end, (update, states))
        return _on_device(setting, shards, (waiting, {}, {}), (init, {}), ({},)), host
    of_blocks = sharded if accumulates else sharded - setting.in_part(shards.trained_root)
    before_root = add(held, of_elements(Category.GRADIENTS, 4, of_blocks, "the blocks' parts"))
    backward = add(kept, waiting), before_root, end
    return _on_device(setting, shards, backward, (add(built, init), built), (update, states)), NOTHING


def drawing(element: int, largest: int) -> Terms:
    """One tensor at a time is drawn whole, in pieces in fp32, of which the last stays until the next is there
    (zerobench/rank/training/weights.py).
    """
    pieces = min(largest, 2 * DRAWN_ELEMENTS)
    return hold(Category.TEMPORARIES, element * largest + 4 * pieces, "initial weights, drawn")


def _on_device(
    setting: Setting,
    shards: Shards,
    backward: tuple[Bytes, Bytes, Bytes],
    init: Sequence[Bytes],
    step: Sequence[Bytes],
) -> Instants:
    """Device memory beside `backward`, which is there as it begins, before the root's gradients are reduced,
    and as it ends: gathered parameters, and the buffer of the last gathering.

    The buffer is let go when the next has been gathered (_fsdp_param_group.py, AllGatherState).
    """
    element = setting.case.element
    held, before_root, end = backward
    root = _root(element, shards)
    blocks = _blocks(element, shards)
    gathered = root if shards.reshards else add(root, blocks)
    in_block = add(held, root, _blocks(element, shards, at_work=shards.reshards))
    buffer = _gathering(element, shards)
    ahead = buffer if shards.reshards else {}
    # Of the root's gradients the embedding's comes last, where it is not the head's too.
    head = _whole_gradients(setting, min(shards.trained_root, setting.first_gradient), "the head's")
    return Instants(
        init=init,
        gathering=add(in_block, buffer),
        forward=add(held, gathered, buffer),
        begun=add(held, gathered, ahead),
        first_gradient=add(held, gathered, ahead, setting.first_gradient_whole),
        bucketed=add(
            in_block,
            ahead,
            _whole_gradients(setting, shards.trained_block, "a block's"),
            head,
        ),
        reduction=_reductions(setting, shards, root, before_root, end),
        backward_end=end,
        step=step,
    )


def _whole_gradients(setting: Setting, elements: int, whose: str) -> Terms:
    return of_elements(Category.GRADIENTS, setting.trained_element, elements, f"{whose}, whole")


def _reductions(setting: Setting, shards: Shards, root: Bytes, before_root: Bytes, end: Bytes) -> tuple[Bytes, ...]:
    """The last block's where the root has no gradients. Else the root's beside its parameters, a tied head's in three
    copies, while the last block's are on their way; then flattened, when its parameters are gone; then reduced
    (_fsdp_param_group.py, post_backward).
    """
    flat, part = _reducing(setting, shards)
    if not shards.trained_root:
        return (add(end, root, flat, part),)
    whole, computed = _whole_gradients(setting, shards.trained_root, "the root's"), setting.tied_gradients(3)
    others = _whole_gradients(setting, shards.trained_root - (setting.head if computed else 0), "the root's")
    on_its_way = _flattened(setting, shards.trained_block, "a block's gradients, flattened to be reduced")
    return (
        add(before_root, root, computed, others, on_its_way),
        add(before_root, whole, flat),
        add(end, flat, part),
    )


def _root(element: int, shards: Shards) -> Terms:
    what = f"embedding, last norm and head, the root's group, gathered as one{shards.note}"
    return of_elements(Category.GATHERED_PARAMETERS, element, shards.root, what)


def _blocks(element: int, shards: Shards, *, at_work: bool = False) -> Terms:
    """All of them, or the one at work; the next one in backward is gathered before the last is freed
    (_fsdp_param_group.py, _prefetch_unshard).
    """

    def term(count: int, what: str, others: Callable[[], Iterable[Term]] | None = None) -> Terms:
        return of_elements(
            Category.GATHERED_PARAMETERS, element, count * shards.block, what + shards.note, others=others
        )

    if not at_work:
        return term(shards.num_blocks, f"all {shards.num_blocks} blocks, kept gathered")
    return term(1, "the block at work", term(2, "the block at work, and the next one").terms.__iter__)


def _gathering(element: int, shards: Shards) -> Terms:
    """The flat buffer that a group is gathered into and then cut from (_fsdp_collectives.py, foreach_all_gather)."""

    def term(elements: int, whose: str, others: Callable[[], Iterable[Term]] | None = None) -> Terms:
        what = f"{whose} parameters, gathered flat before they are cut{shards.note}"
        return of_elements(Category.ALL_GATHER_BUFFERS, element, elements, what, others=others)

    others = (term(2 * shards.block, "two blocks'"), term(shards.root, "the root's"))
    return term(shards.block, "a block's", add(*others).terms.__iter__)


def _reducing(setting: Setting, shards: Shards) -> tuple[Terms, Terms]:
    """The gradients of a group flattened, and this rank's part of their mean (foreach_reduce): the root's, or where it
    has none a block's.
    """
    block, root = (
        (
            _flattened(setting, elements, f"{whose} gradients, flattened to be reduced"),
            _flattened(setting, -(-elements // setting.case.world_size), "this rank's part of them"),
        )
        for elements, whose in ((shards.trained_block, "a block's"), (shards.trained_root, "the root's"))
    )
    if not shards.trained_root:
        return block
    flat, part = (
        Terms(roots.terms[0]._replace(others=blocks.terms.__iter__)) for roots, blocks in zip(root, block, strict=True)
    )
    return flat, part


def _flattened(setting: Setting, elements: int, what: str) -> Terms:
    return of_elements(Category.REDUCE_BUFFERS, setting.trained_element, elements, what)


@dataclass(frozen=True)
class CollectiveVolume:
    """Collectives of one kind in one phase of a step: calls, and elements of their whole messages together."""

    phase: Phase
    kind: str
    calls: int
    elements: int


def ddp_moves(num_params: int, buckets: int) -> tuple[CollectiveVolume, ...]:
    """All gradients once a step, bucket by bucket; micro-batches before the last move nothing (no_sync).

    In the first step they lie in one bucket (distributed.py, _ddp_init_helper).
    """
    return (CollectiveVolume(Phase.BACKWARD, "all_reduce", buckets, num_params),)


def fsdp_moves(shards: Shards, micro_steps: int) -> tuple[CollectiveVolume, ...]:
    """Each group of parameters gathered for forward, blocks again for backward, and every gradient reduced.

    _fully_shard.py: by default the root is not freed after its forward pass.
    """
    groups = shards.num_blocks + 1
    again = micro_steps * shards.passed_blocks if shards.reshards else 0
    reduced = shards.trained_blocks + bool(shards.trained_root)
    moves = (
        CollectiveVolume(Phase.FORWARD, "all_gather", micro_steps * groups, micro_steps * shards.whole),
        CollectiveVolume(Phase.BACKWARD, "all_gather", again, again * shards.block),
        CollectiveVolume(Phase.BACKWARD, "reduce_scatter", micro_steps * reduced, micro_steps * shards.trained),
    )
    return tuple(move for move in moves if move.calls)


def replicas_move(shards: Shards, sharded: int) -> CollectiveVolume:
    """Groups that hold copies of each other add up their parts of the gradients, once a step (HSDP).

    _fsdp_collectives.py, foreach_reduce: each group of parameters by itself, after it is reduced within the shards.
    """
    return CollectiveVolume(Phase.BACKWARD, "all_reduce", shards.trained_blocks + bool(shards.trained_root), sharded)


def bucket_count(setting: Setting, bucket_bytes: int | None) -> int:
    """Buckets that gradients fill, in the reverse order of the model's parameters.

    reducer.cpp, compute_bucket_assignment_by_size: a bucket is closed by the gradient with which it reaches its limit.
    torch's own limits are 1 MiB for the first bucket and 25 MiB for the others.
    """
    limits = [2**20, 25 * 2**20] if bucket_bytes is None else [bucket_bytes]
    count, filled = 0, 0
    for tensor in reversed(setting.tensors):
        filled += setting.trained_element * tensor
        if filled >= limits[min(count, len(limits) - 1)]:
            count, filled = count + 1, 0
    return count + bool(filled)
