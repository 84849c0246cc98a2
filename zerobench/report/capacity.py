"""Whether a trial fits into a GPU and a node, by how much, and what of its need the ledger does not hold.

What a device needs is more than its tensors: the allocator's segments, the CUDA context, NCCL's buffers. Of segments
those count in which something lies: the allocator gives the others, such as start-up's, back before it fails.
"""

from dataclasses import dataclass

from zerobench.records import Place, RankRecord, Status, StepKind
from zerobench.report.memory_view import Instant, peak_instant
from zerobench.report.trials import Trial, completed

_FULL = {Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY}


@dataclass(frozen=True)
class Capacity:
    """What there is to fill."""

    device_bytes: int
    """Memory of one GPU, as NVML reports its total."""
    host_bytes_per_node: int | None = None
    """Memory of one host that training may use; None: not judged."""
    nvme_bytes_per_node: int | None = None
    """Room on the NVMe drives of one node; None: not judged."""


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


@dataclass(frozen=True)
class Fit:
    """Whether a trial fits; a room below zero says how much is missing. None: not known, or not judged."""

    fits: bool | None
    """False where any place is too small; None where the device's need is not known or the trial did not complete, so
    that it may need more than was seen."""
    device_needed_bytes: int | None
    device_room_bytes: int | None
    host_needed_bytes_per_node: int | None
    host_room_bytes: int | None
    nvme_needed_bytes_per_node: int | None
    nvme_room_bytes: int | None


def fits(trial: Trial, capacity: Capacity) -> Fit:
    """Whether `trial` fits into `capacity`.

    A trial that ran out of memory does not fit, whatever its figures say. Host memory of a prediction is that of the
    trial's tensors: interpreter and libraries, a few GB a process, come on top.
    """
    device = device_need(trial)
    host, nvme = host_bytes_per_node(trial), nvme_bytes_per_node(trial)
    needed = None if device is None else device.total_bytes
    rooms = (
        _room(capacity.device_bytes, needed),
        _room(capacity.host_bytes_per_node, host),
        _room(capacity.nvme_bytes_per_node, nvme),
    )
    too_small = trial.record.status in _FULL or any(room is not None and room < 0 for room in rooms)
    is_known = needed is not None and completed(trial)
    return Fit(
        fits=False if too_small else True if is_known else None,
        device_needed_bytes=needed,
        device_room_bytes=rooms[0],
        host_needed_bytes_per_node=host,
        host_room_bytes=rooms[1],
        nvme_needed_bytes_per_node=nvme,
        nvme_room_bytes=rooms[2],
    )


def _room(capacity: int | None, needed: int | None) -> int | None:
    return None if capacity is None or needed is None else capacity - needed


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
    context = (outside.context_bytes if outside else None) or 0
    collectives = (outside.collectives_bytes if outside else None) or 0
    refused = ((failure.bytes_needed if failure else None) or 0) - context - collectives
    return DeviceNeed(
        instant=instant,
        tensors_bytes=tensors,
        slack_bytes=max(0, (held or 0) - tensors, refused - tensors),
        context_bytes=context,
        collectives_bytes=collectives,
    )


def host_instant(trial: Trial) -> Instant | None:
    """The host's ledger at the largest peak of any rank, all steps and phases."""
    return _largest(trial, Place.HOST)


def host_bytes_per_node(trial: Trial) -> int | None:
    """Ranks of a node times the largest host peak of one; for predictions without `rest_of_process`, which says
    nothing of the trial. None where no host memory was recorded.
    """
    return _per_node(trial, Place.HOST)


def nvme_bytes_per_node(trial: Trial) -> int | None:
    """Ranks of a node times the most that one keeps on NVMe; None where nothing was recorded there."""
    return _per_node(trial, Place.NVME)


def _per_node(trial: Trial, place: Place) -> int | None:
    instant = _largest(trial, place)
    return None if instant is None else trial.spec.gpus_per_node * instant.total_bytes


def _largest(trial: Trial, place: Place) -> Instant | None:
    instants = (peak_instant(rank, step, place) for rank in trial.ranks for step in StepKind)
    kept = [instant.of_trial(trial.spec.evidence) for instant in instants if instant is not None]
    return max(kept, key=lambda instant: instant.total_bytes, default=None)
