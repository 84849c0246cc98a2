"""What torch's own strategies hold, in closed form: read in the source of torch 2.13.

DDP: torch/nn/parallel/distributed.py and csrc/distributed/c10d/reducer.cpp. FSDP2: torch/distributed/fsdp/_fully_shard.
Neither needs a configuration: what they are functions of is the trial. Compressing hooks are not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerobench.formulas.deepspeed.setting import Bytes, Moments, Setting, add
from zerobench.records import Category, Phase, StepKind

_SYNC_BYTES = 250 * 2**20
"""DDP broadcasts the initial weights in flat copies of so many bytes at most (broadcast_bucket_size)."""

_DRAWN_ELEMENTS = 2**24
"""Elements of initial weights that are drawn at a time."""


def ddp_device(setting: Setting, step: StepKind) -> Moments:
    """As the plain loop, with gradients that are there from the first moment to the last: they are DDP's buckets."""
    built = add(_parameters(setting), _gradients(setting, setting.num_params), _masters(setting))
    states = add(built, setting.moments(setting.tensors))
    held = built if step is StepKind.FIRST else states
    first = add(held, _gradients(setting, setting.first_gradient))
    between = _outside_of_buckets(setting, step)
    fp32_gradients = {} if setting.case.element == 4 else {Category.GRADIENTS: 4 * setting.num_params}
    temporaries = {Category.TEMPORARIES: setting.update_temporaries(setting.tensors)}
    sync = {Category.TEMPORARIES: min(setting.case.element * setting.num_params, _SYNC_BYTES)}
    return Moments(
        init=(add(_parameters(setting), sync), built),
        gathering=add(held, between),
        forward=add(held, between),
        first_gradient=add(first, between),
        bucketed=add(first, between),
        reduction=(add(held, between),),
        backward_end=held,
        step=(add(states, fp32_gradients, temporaries), states),
    )


def _outside_of_buckets(setting: Setting, step: StepKind) -> Bytes:
    """Micro-batches that are not reduced yet find no views into the buckets in the very first step."""
    accumulates = setting.case.micro_steps > 1 and step is StepKind.FIRST
    return _gradients(setting, setting.num_params) if accumulates else {}


@dataclass(frozen=True)
class Shards:
    """How FSDP2 cuts the model: what is gathered together, in elements."""

    root: int
    """Embeddings, last norm and head, gathered once for a whole micro-batch."""
    block: int
    num_blocks: int
    reshards: bool
    """Whether a block's parameters are freed after its forward pass."""

    @property
    def whole(self) -> int:
        """All parameters."""
        return self.root + self.num_blocks * self.block

    @property
    def gathered(self) -> int:
        """Elements that stay gathered from the forward to the backward pass."""
        return self.root if self.reshards else self.whole


def fsdp(setting: Setting, step: StepKind, shards: Shards, *, offloads: bool) -> tuple[Moments, Moments]:
    """Device and host of one rank. Each tensor's part is taken as its elements by the ranks, rounded up.

    FSDP2 pads whole rows (_fsdp_param.py, _init_sharded_param), so a tensor whose first dimension the ranks do not
    divide takes up to a row more.
    """
    element, own = setting.case.element, setting.sharded
    built = {Category.MASTER_WEIGHTS if element == 2 else Category.PARAMETERS: 4 * own}
    states = add(built, setting.moments(setting.parts))
    held = built if step is StepKind.FIRST else states
    sharded_gradients = {Category.GRADIENTS: 4 * own}
    update = add(
        states,
        sharded_gradients,
        {Category.TEMPORARIES: setting.update_temporaries(setting.parts, on_host=offloads)},
    )
    init = _drawing(setting)
    between = sharded_gradients if setting.case.micro_steps > 1 else {}
    if not offloads:
        kept, end = add(held, between), add(held, sharded_gradients)
        return _on_device(setting, shards, kept, end, (add(built, init), built), (update, states)), _nothing()
    host = Moments(
        init=(built,),
        gathering=add(held, between),
        forward=add(held, between),
        first_gradient=add(held, between),
        bucketed=add(held, between),
        reduction=(),
        backward_end=add(held, sharded_gradients),
        step=(update, states),
    )
    return _on_device(setting, shards, {}, {}, (init, {}), ({},)), host


def _drawing(setting: Setting) -> Bytes:
    """One tensor at a time is drawn whole, in pieces in fp32 (zerobench/worker/weights.py)."""
    largest = setting.largest_tensor
    return {Category.TEMPORARIES: setting.case.element * largest + 4 * min(largest, _DRAWN_ELEMENTS)}


def _on_device(
    setting: Setting, shards: Shards, held: Bytes, end: Bytes, init: Sequence[Bytes], step: Sequence[Bytes]
) -> Moments:
    """What lies on the device beside `held`: gathered parameters, and the buffer of the last gathering.

    The buffer is let go when the next has been gathered (_fsdp_param_group.py, AllGatherState).
    """
    gathered, buffer = _gathered(setting, shards.gathered), _gathering(setting, shards.block)
    in_block = add(held, _gathered(setting, shards.gathered if not shards.reshards else shards.root + shards.block))
    whole = _gradients(setting, shards.root)
    output = {
        Category.REDUCE_BUFFERS: setting.case.element * (shards.root + -(-shards.root // setting.case.world_size))
    }
    first = _gradients(setting, setting.first_gradient)
    return Moments(
        init=init,
        gathering=add(in_block, buffer),
        forward=add(held, gathered, buffer),
        first_gradient=add(held, gathered, buffer, first),
        bucketed=add(in_block, buffer if shards.reshards else {}, _gradients(setting, shards.block), whole),
        reduction=(add(end, _gathered(setting, shards.root), whole, output),),
        backward_end=end,
        step=step,
    )


def _parameters(setting: Setting) -> Bytes:
    return {Category.PARAMETERS: setting.case.element * setting.num_params}


def _gradients(setting: Setting, elements: int) -> Bytes:
    return {Category.GRADIENTS: setting.case.element * elements}


def _masters(setting: Setting) -> Bytes:
    return {} if setting.case.element == 4 else {Category.MASTER_WEIGHTS: 4 * setting.num_params}


def _gathered(setting: Setting, elements: int) -> Bytes:
    return {Category.GATHERED_PARAMETERS: setting.case.element * elements}


def _gathering(setting: Setting, elements: int) -> Bytes:
    return {Category.ALL_GATHER_BUFFERS: setting.case.element * elements}


def _nothing() -> Moments:
    return Moments(({},), {}, {}, {}, {}, (), {}, ({},))


@dataclass(frozen=True)
class Moved:
    """Collectives of one kind in one phase of a step: calls, and elements of their whole messages together."""

    phase: Phase
    kind: str
    calls: int
    elements: int


def ddp_moves(num_params: int, buckets: int) -> tuple[Moved, ...]:
    """All gradients once a step, bucket by bucket; micro-batches before the last move nothing (no_sync).

    In the first step they lie in one bucket (distributed.py, _ddp_init_helper).
    """
    return (Moved(Phase.BACKWARD, "all_reduce", buckets, num_params),)


def fsdp_moves(shards: Shards, micro_steps: int) -> tuple[Moved, ...]:
    """Each group of parameters gathered for forward, blocks again for backward, and every gradient reduced.

    _fully_shard.py: by default the root is not freed after its forward pass.
    """
    groups = shards.num_blocks + 1
    again = micro_steps * shards.num_blocks if shards.reshards else 0
    found = (
        Moved(Phase.FORWARD, "all_gather", micro_steps * groups, micro_steps * shards.whole),
        Moved(Phase.BACKWARD, "all_gather", again, again * shards.block),
        Moved(Phase.BACKWARD, "reduce_scatter", micro_steps * groups, micro_steps * shards.whole),
    )
    return tuple(one for one in found if one.calls)


def replicas_move(shards: Shards, sharded: int) -> Moved:
    """Groups that hold copies of each other add up their parts of the gradients, once a step (HSDP).

    _fsdp_collectives.py, foreach_reduce: each group of parameters by itself, after it is reduced within the shards.
    """
    return Moved(Phase.BACKWARD, "all_reduce", shards.num_blocks + 1, sharded)


def bucket_count(setting: Setting, bucket_bytes: int | None) -> int:
    """Buckets that gradients fill, in the reverse order of the model's parameters.

    reducer.cpp, compute_bucket_assignment_by_size: a bucket is closed by the gradient with which it reaches its limit.
    torch's own limits are 1 MiB for the first bucket and 25 MiB for the others.
    """
    limits = [2**20, 25 * 2**20] if bucket_bytes is None else [bucket_bytes]
    count, filled = 0, 0
    for tensor in reversed(setting.tensors):
        filled += setting.case.element * tensor
        if filled >= limits[min(count, len(limits) - 1)]:
            count, filled = count + 1, 0
    return count + bool(filled)
