"""Seconds that swapping to NVMe adds to a step, as DeepSpeed's swappers wait for their drives.

The update goes through the sub-groups one by one: states and gradients are read, the host updates, states are written
(runtime/zero/stage3.py, `step`). One handle does all, and each is waited for (partitioned_optimizer_swapper.py). With
`pipeline_read` the next sub-group is read meanwhile, with `pipeline_write` the last one written, each by a handle of
its own (pipelined_optimizer_swapper.py).

In the passes parameters are read ahead (partitioned_param_coordinator.py, `__prefetch_nvme_param_partitions`), beside
all that the blocks before them do: computing, and the collectives and copies that it waits for.
Gradients that fill the swapper's buffers are written before backward goes on (async_swapper.py,
`_flush_buffers_until_complete`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from zerobench.records import Phase, StepKind
from zerobench.report.step_time.terms import PASSES, UPDATE, Work
from zerobench.spec.sharding import state_shard_size
from zerobench.spec.trial import Offload
from zerobench.timing.step import hidden_s


def swapping_s(work: Work, passes_s: float, host_s: float, layers: int) -> tuple[float, float] | None:
    """By how many seconds more than `passes_s`, which computing, collectives and copies take, the passes through
    `layers` layers take, and than `host_s`, which the host works in it, the update. None where nothing was counted, or
    the drives' rate is not known.
    """
    if Offload.NVME not in work.spec.offloaded_to:
        return 0.0, 0.0
    passes, update = _drives_s(work, PASSES), _drives_s(work, UPDATE)
    if passes is None or update is None:
        return None
    ahead_s, awaited_s = passes
    return ahead_s - hidden_s(ahead_s, passes_s, layers) + awaited_s, _in_turns_s(work, host_s, *update) - host_s


def _drives_s(work: Work, phases: Iterable[Phase]) -> tuple[float, float] | None:
    """Seconds in which the drives read and write what the ranks of a node swap."""
    rows, rate = [row for row in work.rank.nvme if row.step is StepKind.STEADY], work.links.nvme_gb_per_s
    if not rows or rate is None:
        return None
    mine = [row for row in rows if row.phase in set(phases)]
    moved = sum(row.read_bytes for row in mine), sum(row.written_bytes for row in mine)
    read_s, written_s = (work.spec.gpus_per_node * nbytes / (rate * 1e9) for nbytes in moved)
    return read_s, written_s


def _in_turns_s(work: Work, host_s: float, read_s: float, written_s: float) -> float:
    """The update of equal sub-groups: the first one is waited for from end to end, each other as long as what its
    swapper does not do beside it.
    """
    count = _sub_groups(work)
    reads_ahead, writes_behind = (_is_set(work, f"pipeline_{name}") for name in ("read", "write"))
    alone = host_s + (0.0 if reads_ahead else read_s) + (0.0 if writes_behind else written_s)
    beside = (read_s if reads_ahead else 0.0, written_s if writes_behind else 0.0)
    first = host_s + read_s + written_s
    return (first + (count - 1) * max(alone, *beside)) / count


def _is_set(work: Work, key: str) -> bool:
    return work.case is not None and bool(work.case.zero(f"offload_optimizer.{key}"))


def _sub_groups(work: Work) -> int:
    """How many the rank's partition makes."""
    counts, case = work.rank.parameters, work.case
    if counts is None or case is None:
        return 1
    return max(1, math.ceil(counts.trainable / state_shard_size(work.spec) / float(case.zero("sub_group_size"))))
