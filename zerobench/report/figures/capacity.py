"""Memory that a trial needs of a GPU and of a node, with the parts that the ledger does not hold.

What a device needs is more than its tensors: the allocator's segments, the CUDA context, NCCL's buffers. Of segments
those count in which something lies: the allocator gives the others, such as start-up's, back before it fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import Phase, Place, Status, StepKind
from zerobench.config.derived.sharding import state_shard_size
from zerobench.config.trial.trial import Evidence, Offload, Precision
from zerobench.estimate.clock.kernels import FP32_BYTES
from zerobench.records.instants import Instant, peak_instant
from zerobench.records.records import RankRecord
from zerobench.records.trials import Trial, case_of
from zerobench.report.figures.fit import Fit, Space


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """GPU memory that one rank needs at start-up or in steps, in parts that add up to it."""

    step: StepKind
    """`first`: start-up, which is initialization and the first step; `steady`: a later step."""
    instant: Instant | None
    """The ledger at the largest peak of that step; None without a ledger."""
    tensors_bytes: int
    """The ledger's total at that instant, or the allocator's own peak without a ledger."""
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


def need_words(step: StepKind) -> str:
    """Time of the need: `at start-up` or `in steps`."""
    return "at start-up" if step is StepKind.FIRST else "in steps"


def when_needed(needs: Mapping[StepKind, int]) -> str:
    """Time of the larger need, and the size of the other: `at start-up, steps 59.56 GiB`; empty if not known."""
    if not needs:
        return ""
    first, *others = sorted(needs, key=lambda step: (-needs[step], step is StepKind.FIRST))
    less = [f", {'start-up' if step is StepKind.FIRST else 'steps'} {format_bytes(needs[step])}" for step in others]
    return need_words(first) + "".join(less)


def reserved_words(reserved: Mapping[StepKind, int]) -> str:
    """Largest reserved memory: `72.96 GiB at start-up and 59.56 GiB in steps`."""
    return " and ".join(f"{format_bytes(reserved[step])} {need_words(step)}" for step in StepKind if step in reserved)


def total_needs(needs: Mapping[StepKind, DeviceNeed]) -> dict[StepKind, int]:
    """The totals of `needs`."""
    return {step: need.total_bytes for step, need in needs.items()}


def fit_of(trial: Trial, needs: Mapping[StepKind, DeviceNeed], device_bytes: int | None, host_bytes: int | None) -> Fit:
    """Needs of `trial`, of one GPU and of one node, against the memory there is; None: capacity not known.

    The host of a measured trial held it, whatever it has.
    """
    need, was_refused = largest_need(needs), trial.record.status is Status.OUT_OF_DEVICE_MEMORY
    device = Space(None if need is None else need.total_bytes, device_bytes, was_refused)
    needs_host = bool(trial.spec.offloaded_to) and trial.spec.evidence is not Evidence.MEASURED
    return Fit(device, Space(host_bytes_per_node(trial), host_bytes), needs_host)


def device_need(trial: Trial) -> DeviceNeed | None:
    """Need of the rank that needs most, at start-up or in steps; None where nobody watched."""
    return largest_need(device_needs(trial))


def largest_need(needs: Mapping[StepKind, DeviceNeed]) -> DeviceNeed | None:
    """The larger of start-up's need and that of steps; steps' of equals, since they last."""
    return max(needs.values(), key=lambda need: (need.total_bytes, need.step is StepKind.STEADY), default=None)


def device_needs(trial: Trial) -> dict[StepKind, DeviceNeed]:
    """Needs of the rank that needs most at start-up, and in steps; a rank's for each that was watched."""
    needs = [need for rank in trial.ranks for need in _rank_needs(rank)]
    return {need.step: need for need in sorted(needs, key=lambda need: need.total_bytes)}


def _rank_needs(rank: RankRecord) -> list[DeviceNeed]:
    needs = [need for step in StepKind if (need := _step_need(rank, step)) is not None]
    failure = rank.failure
    if failure is None or failure.bytes_needed is None:
        return needs
    # What was in use and asked for at the refusal may be more than was held with room for everything.
    if not needs or failure.bytes_needed <= max(need.total_bytes for need in needs):
        return needs
    at_start = failure.phase is Phase.INIT or failure.step_index == 0
    refused_in = StepKind.FIRST if at_start else None if failure.step_index is None else StepKind.STEADY
    grown = max(needs, key=lambda need: (need.step is refused_in, need.total_bytes))
    missing_bytes = failure.bytes_needed - grown.total_bytes
    return [replace(need, slack_bytes=need.slack_bytes + missing_bytes) if need is grown else need for need in needs]


def _step_need(rank: RankRecord, step: StepKind) -> DeviceNeed | None:
    instant = peak_instant(rank, step, Place.DEVICE)
    rows = [row for row in rank.device_memory if row.step is step]
    if instant is None and not rows:
        return None
    allocated = max((row.peak_allocated_bytes for row in rows), default=0)
    tensors = allocated if instant is None else instant.total_bytes
    held = max((row.held_bytes for row in rows), default=0)
    return DeviceNeed(
        step=step,
        instant=instant,
        tensors_bytes=tensors,
        slack_bytes=max(0, held - tensors),
        context_bytes=context_bytes(rank) or 0,
        collectives_bytes=(rank.context.collectives_bytes if rank.context else None) or 0,
    )


def context_bytes(rank: RankRecord) -> int | None:
    """Memory of the rank's process outside torch, less NCCL's first communicator; None where nobody read it.

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
    kept = [instant.exclude_predictor(trial.spec.evidence) for instant in instants if instant is not None]
    return max(kept, key=lambda instant: instant.total_bytes, default=None)


def host_bytes_per_node(trial: Trial) -> int | None:
    """Ranks of a node times the largest host peak of one; for predictions without `rest_of_process`, which says
    nothing of the trial. None where no host memory was recorded.
    """
    instant = host_instant(trial)
    return None if instant is None else trial.spec.gpus_per_node * (instant.total_bytes + cast_bytes(trial))


def cast_bytes(trial: Trial) -> int:
    """Host memory that torch takes while stage 3 copies a sub-group's new weights between host and GPU (Recast in
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
