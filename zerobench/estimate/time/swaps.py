"""Seconds that swapping to NVMe adds to a step, as DeepSpeed's swappers wait for their drives.

The update goes through the sub-groups one by one: states and gradients are read, the host updates, states are written
(runtime/zero/stage3.py, `step`). One handle does all, and each is waited for (partitioned_optimizer_swapper.py). With
`pipeline_read` the next sub-group is read meanwhile, with `pipeline_write` the last one written, each by a handle of
its own (pipelined_optimizer_swapper.py).

In the passes the host waits for each parameter's read, then for its copy to the device, and goes on to the next one
while it is gathered, unless that is only copied: a copy waits for the gathers before it. What is read ahead is awaited
at the next module (partitioned_param_coordinator.py, `__prefetch_nvme_param_partitions`: little is under way when its
queue comes to a drive). The host issues nothing meanwhile. All of that goes on beside computing.
Gradients that fill the swapper's buffers are written before backward goes on (async_swapper.py,
`_flush_buffers_until_complete`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from zerobench.common.vocabulary import Phase, StepKind
from zerobench.config.deepspeed.reading import smallest_swapped_bytes
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.models.tensors import layout_of
from zerobench.config.trial.trial import Offload
from zerobench.estimate.time.step import hidden_s
from zerobench.estimate.time.terms import Work

_AFTER_PREFETCH = 0.25
"""Of what the host issues for a module, the part that comes after its reads ahead and before it waits for them: one
kernel in four of simulated orders."""


class Pass(NamedTuple):
    """Seconds of the forward or the backward passes of a step, without drives and copies."""

    phase: Phase
    total_s: float
    gathered_s: float
    """Of its all-gathers, hidden or not."""
    issued_s: float = 0.0
    """In which the host issues it."""


def swapping_s(
    work: Work, passes: Sequence[Pass], copied_s: float, exposed_s: float, host_s: float
) -> tuple[float, float] | None:
    """By how many seconds drives, and copies over the host link that take `copied_s`, of which `exposed_s` are hidden
    by nothing where no drive is read, make `passes` longer, and drives the update, in which the host works `host_s`.
    None where nothing was counted, or the drives' rate is not known.
    """
    if Offload.NVME not in work.spec.offloaded_to:
        return exposed_s, 0.0
    drives = {phase: _drives_s(work, phase) for phase in (*(each.phase for each in passes), Phase.STEP)}
    known = {phase: seconds for phase, seconds in drives.items() if seconds is not None}
    if len(known) < len(drives):
        return None
    all_read_s = sum(known[each.phase][0] for each in passes)
    added_s = 0.0 if all_read_s else exposed_s
    count, alone = _gathers_before_copies(work)
    reads_ahead = work.case is not None and bool(work.case.zero("stage3_prefetch_bucket_size"))
    alone_share = 1 - _AFTER_PREFETCH if reads_ahead else 1.0
    for phase, total_s, gathered_s, issued_s in passes:
        read_s, written_s = known[phase]
        if read_s:
            chain_s = read_s + copied_s * read_s / all_read_s + alone * gathered_s
            added_s += max(chain_s - hidden_s(chain_s, total_s, count), chain_s + alone_share * issued_s - total_s)
        added_s += written_s
    return added_s, _in_turns_s(work, host_s, *known[Phase.STEP]) - host_s


def _drives_s(work: Work, phase: Phase) -> tuple[float, float] | None:
    """Seconds in which the drives read and write what the ranks of a node swap."""
    rows, rate = [row for row in work.rank.nvme if row.step is StepKind.STEADY], work.links.nvme_gb_per_s
    if not rows or rate is None:
        return None
    mine = [row for row in rows if row.phase is phase]
    moved = sum(row.read_bytes for row in mine), sum(row.written_bytes for row in mine)
    read_s, written_s = (work.spec.gpus_per_node * nbytes / (rate * 1e9) for nbytes in moved)
    return read_s, written_s


def _gathers_before_copies(work: Work) -> tuple[int, float]:
    """How many parameters are gathered in a pass, and the share of their elements that the next one's copy waits for,
    since it is not on a drive.
    """
    if work.case is None:
        return 1, 1.0
    kept = int(work.case.zero("stage3_param_persistence_threshold"))
    layout = layout_of(work.spec.model)
    sizes = [size for size in ([] if layout is None else layout.all) if size > kept]
    least, ranks = smallest_swapped_bytes(work.case.config), state_shard_size(work.spec)
    is_read = [-(-size // ranks) * work.case.element >= least for size in sizes]
    return max(1, len(sizes)), 1 - sum(compress(sizes, is_read[1:])) / max(1, sum(sizes))


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
