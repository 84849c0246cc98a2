"""What a trial needs of a GPU and of a node, and what of its need the ledger does not hold.

What a device needs is more than its tensors: the allocator's segments, the CUDA context, NCCL's buffers. Of segments
those count in which something lies: the allocator gives the others, such as start-up's, back before it fails.
"""

from dataclasses import dataclass

from zerobench.records import Place, RankRecord, StepKind
from zerobench.report.memory_view import Instant, peak_instant
from zerobench.report.trials import Trial, case_of
from zerobench.spec.sharding import state_shard_size
from zerobench.spec.trial import Offload, Precision
from zerobench.timing.kernels import FP32_BYTES


@dataclass(frozen=True)
class DeviceNeed:
    """What one rank needs of its GPU at its worst, in parts that add up to it."""

    instant: Instant | None
    """The ledger at the largest peak of all steps and phases; None where there is no ledger."""
    tensors_bytes: int
    """The ledger's total at that instant, or the allocator's own peak where there is no ledger."""
    slack_bytes: int
    """What the allocator holds beyond that and cannot give back, because something lies in the same segments; all that
    it reserved in records that do not tell them apart, 0 where no allocator was watched or
    played (CPU ranks)."""
    context_bytes: int
    """CUDA context and kernels; 0 where not known, as on a CPU."""
    collectives_bytes: int
    """NCCL's buffers; 0 where not known or none."""

    @property
    def total_bytes(self) -> int:
        return self.tensors_bytes + self.slack_bytes + self.context_bytes + self.collectives_bytes


def device_need(trial: Trial) -> DeviceNeed | None:
    """What the rank that needs most needs in any step; None where nobody watched."""
    needs = [need for rank in trial.ranks if (need := _rank_need(rank)) is not None]
    return max(needs, key=lambda need: need.total_bytes, default=None)


def _rank_need(rank: RankRecord) -> DeviceNeed | None:
    instants = [seen for step in StepKind if (seen := peak_instant(rank, step, Place.DEVICE)) is not None]
    instant = max(instants, key=lambda peak: peak.total_bytes, default=None)
    held = max((row.held_bytes for row in rank.device_memory), default=None)
    if instant is None and held is None:
        return None
    allocated = max((row.peak_allocated_bytes for row in rank.device_memory), default=0)
    tensors = allocated if instant is None else instant.total_bytes
    outside, failure = rank.context, rank.failure
    context = context_bytes(rank) or 0
    collectives = (outside.collectives_bytes if outside else None) or 0
    refused = ((failure.bytes_needed if failure else None) or 0) - context - collectives
    return DeviceNeed(
        instant=instant,
        tensors_bytes=tensors,
        slack_bytes=max(0, (held or 0) - tensors, refused - tensors),
        context_bytes=context,
        collectives_bytes=collectives,
    )


def context_bytes(rank: RankRecord) -> int | None:
    """What the rank's process held outside torch, less NCCL's first communicator; None where nobody read it.

    That is more than the context took when it was made: CUDA loads kernels when they are first launched, and engines
    make communicators of their own.
    """
    read = rank.context
    if read is None or read.context_bytes is None:
        return None
    later = [
        row.nvml_process_bytes - row.reserved_bytes - (read.collectives_bytes or 0)
        for row in rank.device_memory
        if row.nvml_process_bytes is not None
    ]
    return max([read.context_bytes, *later])


def host_instant(trial: Trial) -> Instant | None:
    """The host's ledger at the largest peak of any rank, all steps and phases."""
    instants = (peak_instant(rank, step, Place.HOST) for rank in trial.ranks for step in StepKind)
    kept = [instant.of_trial(trial.spec.evidence) for instant in instants if instant is not None]
    return max(kept, key=lambda instant: instant.total_bytes, default=None)


def host_bytes_per_node(trial: Trial) -> int | None:
    """Ranks of a node times the largest host peak of one; for predictions without `rest_of_process`, which says
    nothing of the trial. None where no host memory was recorded.
    """
    instant = host_instant(trial)
    return None if instant is None else trial.spec.gpus_per_node * (instant.total_bytes + cast_bytes(trial))


def cast_bytes(trial: Trial) -> int:
    """What torch takes of the host while stage 3 copies a sub-group's new weights between host and GPU (Recast in
    step_time/transfers.py), which no prediction's ledger sees and each measured one does; to a drive they go singly.
    """
    spec, case = trial.spec, case_of(trial)
    is_cast = spec.zero_stage == 3 and spec.precision is not Precision.FP32 and spec.prediction.gpu is not None
    if case is None or not is_cast or not spec.evidence.is_predicted:
        return 0
    up = spec.offload_optimizer is not Offload.NONE and spec.offload_param is Offload.NONE
    down = spec.offload_optimizer is Offload.NONE and spec.offload_param is Offload.CPU
    elements = min(int(case.zero("sub_group_size")), -(-case.trained // state_shard_size(spec)))
    return elements * (case.element * up + FP32_BYTES * down)
