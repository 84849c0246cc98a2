"""A measured frontier: the most that fits, as predicted and as found by trying, and what ends it.

A try fits where its trial completed within the limit. On a GPU the limit is the GPU: running out of memory is the
answer, and no figure is held against another. Where a capacity is given (CPU ranks have no other bound), the device's
peak is held against it: what tensors take on the rank that takes most.
"""

from dataclasses import dataclass

from zerobench.common.vocabulary import Status
from zerobench.config.derived.frontier import Frontier
from zerobench.config.derived.frontier_axes import FrontierAxis
from zerobench.records.instants import device_peak_bytes
from zerobench.records.trials import Trial, completed
from zerobench.report.figures.speed import Speed, speed_of

HOST_MEMORY_RULE = "host_memory"
"""The rule that refuses states which host memory cannot hold: a result, like running out of it."""


@dataclass(frozen=True)
class Limit:
    """Memory that one rank may take of its device."""

    capacity_bytes: int
    is_given: bool
    """True if given by the user; else it is all of the GPU's memory."""

    def needed_bytes(self, trial: Trial) -> int | None:
        """Memory of a completed trial, to compare with the capacity; None where nobody watched.

        The tensors' peak; against a whole GPU with CUDA context and NCCL, and never more than there is, since the
        trial did complete. What the allocator keeps beyond the tensors it gives back before it runs out of memory
        (c10/cuda/CUDACachingAllocator.cpp, malloc), and is not in it.
        """
        peak_bytes = device_peak_bytes(trial)
        if peak_bytes is None or self.is_given:
            return peak_bytes
        outside = [rank.context for rank in trial.ranks if rank.context is not None]
        sizes = ((context.context_bytes or 0) + (context.collectives_bytes or 0) for context in outside)
        peak_bytes += max(sizes, default=0)
        return min(peak_bytes, self.capacity_bytes) if trial.spec.evidence.needs_device else peak_bytes


@dataclass(frozen=True)
class RunFrontierRow:
    """Result for one cell."""

    label: str
    predicted: Frontier | None
    """None where the cell was not predicted, or its prediction failed."""
    measured: Frontier | None
    """None where the search was given up."""
    largest: Trial | None
    """The trial of the largest that fits; None where nothing does."""
    too_large: Trial | None
    """The trial of the least that was seen not to fit."""

    @property
    def speed(self) -> Speed | None:
        """Speed of the largest that fits; of a rank alone of many without what it would wait for others."""
        return None if self.largest is None else speed_of(self.largest)


def ran_out(trial: Trial) -> bool:
    """True if memory ended the trial, so that it needs more than there is and nobody knows how much."""
    record = trial.record
    full = {Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY}
    return record.status in full or (record.status is Status.SKIPPED and record.rule == HOST_MEMORY_RULE)


def ends(row: RunFrontierRow) -> str:
    """Limit that keeps anything larger from fitting."""
    if row.measured is None:
        return "given up"
    if row.too_large is None:
        return "limit"
    if completed(row.too_large):
        return "capacity"
    status = row.too_large.record.status
    return "host memory" if status is Status.SKIPPED else status.value.removeprefix("out_of_").replace("_", " ")


def words_of(axis: FrontierAxis, device: str | None) -> str:
    """Unit of the axis; where there is no GPU, per rank."""
    return axis.words if device else axis.words.replace("per GPU", "per rank")
