"""Collectives of DeepSpeed 0.19.8 in a step at each ZeRO stage, in closed form, without norms and flags.

It is not the paper's account (zero_paper.collectives): stages 1 and 2 all-reduce whole buckets unless
`use_multi_rank_bucket_allreduce` is false (stage_1_and_2.py, average_tensor), which moves P more, and pad the flat
parameters that they gather. Stage 3 pads each tensor, gathers small parameters one by one after the update, and others
as its coordinator decides module by module (estimate/memory/deepspeed/gathers.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, groupby

from zerobench.common.vocabulary import Phase
from zerobench.estimate.memory.deepspeed.gathers import Gathers
from zerobench.estimate.memory.deepspeed.setting import Setting
from zerobench.estimate.memory.deepspeed.stage_3 import persistent_tensors
from zerobench.estimate.memory.torch_strategies import CollectiveVolume


def zero_moves(setting: Setting, micro_steps: int) -> tuple[CollectiveVolume, ...]:
    """Elements of one rank's messages in a steady step of `micro_steps` forward and backward passes."""
    stage = setting.case.stage
    if stage == 0:
        return (CollectiveVolume(Phase.BACKWARD, "all_reduce", 1, setting.num_params),)
    return _flat_moves(setting, micro_steps) if stage < 3 else _partitioned_moves(setting, micro_steps)


def _flat_moves(setting: Setting, micro_steps: int) -> tuple[CollectiveVolume, ...]:
    """Stage 1 reduces with the last backward pass, stage 2 with each (runtime/engine.py, allreduce_gradients)."""
    times = micro_steps if setting.case.stage == 2 else 1
    is_whole = setting.case.runs_bf16_optimizer or bool(setting.case.zero("use_multi_rank_bucket_allreduce"))
    gathered = setting.flat_partition * setting.case.world_size
    calls = times * (1 if setting.case.runs_bf16_optimizer else _reductions(setting, is_whole=is_whole))
    return (
        CollectiveVolume(Phase.BACKWARD, "all_reduce" if is_whole else "reduce", calls, times * setting.num_params),
        CollectiveVolume(Phase.STEP, "all_gather", 1, gathered),
    )


def _reductions(setting: Setting, *, is_whole: bool) -> int:
    """Return the number of reductions of a backward pass at stages 1 and 2: the slices of a full bucket, cut where the
    flat partitions end, are reduced as soon as more than a bucket's elements have come together, or those of each rank
    have (stage_1_and_2.py, average_tensor, allreduce_and_scatter and allreduce_no_retain).
    """
    limit, starts = setting.case.bucket_elements, list(accumulate(setting.tensors, initial=0))
    calls = 0
    for fill in setting.filled_with(limit):
        waiting: dict[int, int] = {}
        slices = (
            piece for number in fill for piece in _cut(starts[number], starts[number + 1], setting.flat_partition)
        )
        for owner, pieces in groupby(slices, key=lambda piece: piece[0]):
            to = 0 if is_whole else owner
            waiting[to] = waiting.get(to, 0) + sum(elements for _, elements in pieces)
            if waiting[to] > limit:
                calls += 1
                del waiting[to]
        calls += len(waiting)
    return calls


def _cut(start: int, end: int, partition: int) -> Iterator[tuple[int, int]]:
    """Yield the ranks of the flat elements from `start` to `end`, and the elements of each."""
    for owner in range(start // partition, -(-end // partition)):
        yield owner, min(end, (owner + 1) * partition) - max(start, owner * partition)


def _partitioned_moves(setting: Setting, micro_steps: int) -> tuple[CollectiveVolume, ...]:
    ranks, gathered = setting.case.world_size, setting.gathers or Gathers()
    persistent = persistent_tensors(setting)
    small = sum(-(-tensor // ranks) * ranks for tensor in persistent)
    fills = len(setting.fills(setting.case.bucket_elements))
    moves = (
        *(
            CollectiveVolume(phase, "all_gather", micro_steps * gathered.calls[phase], micro_steps * elements)
            for phase, elements in gathered.elements.items()
        ),
        CollectiveVolume(Phase.BACKWARD, "reduce_scatter", micro_steps * fills, micro_steps * setting.sharded * ranks),
        CollectiveVolume(Phase.STEP, "all_gather", len(persistent), small),
    )
    return tuple(move for move in moves if move.elements)
