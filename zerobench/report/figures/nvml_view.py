"""Memory of a trial's devices by the driver: the sampled peak, and the waterfall from used memory down to tensors."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zerobench.common.vocabulary import Place
from zerobench.records.instants import Instant, end_instant, phase_peak
from zerobench.records.records import NvmlDevice, NvmlSummary
from zerobench.records.trials import Trial
from zerobench.report.figures.nodes import ranks_of, same_node


def bare_uuid(uuid: str) -> str:
    """A device UUID without the prefix that some of NVML's and CUDA's spellings have and some lack."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


def devices_of(trial: Trial) -> list[NvmlDevice]:
    """The sampled devices that the trial's ranks ran on; all sampled ones where no rank names its device."""
    return [device for _, device in _devices(trial)]


def _devices(trial: Trial) -> Iterator[tuple[NvmlSummary, NvmlDevice]]:
    """As `devices_of`, each with its node's summary."""
    is_named = any(rank.device_uuid for rank in trial.ranks)
    for summary in trial.record.nvml:
        ranks = ranks_of(trial.ranks, summary) if is_named else []
        used = {bare_uuid(rank.device_uuid) for rank in ranks if rank.device_uuid}
        yield from (
            (summary, device) for device in summary.devices if not is_named or bare_uuid(device.gpu_uuid) in used
        )


def nvml_peak_bytes(trial: Trial) -> int | None:
    """The most that NVML saw used on one device of the trial: sampled, and read at the phases' boundaries."""
    sampled = [device.peak_used_bytes for device in devices_of(trial)]
    read = [row.nvml_used_bytes for rank in trial.ranks for row in rank.device_memory]
    return max((value for value in sampled + read if value is not None), default=None)


def missed_spike_bytes(trial: Trial) -> int | None:
    """Excess of the allocator's own peak of reserved memory over what NVML saw on that device, if any.

    Reserved memory is part of used memory, so a lower NVML peak means that a spike fell between two samples.
    """
    seen = list(_devices(trial))
    missed = []
    for rank in trial.ranks:
        reserved = max((row.peak_reserved_bytes for row in rank.device_memory), default=None)
        mine = (device for node, device in seen if same_node(rank, node))
        uuid = bare_uuid(rank.device_uuid or "")
        peak = next((device.peak_used_bytes for device in mine if bare_uuid(device.gpu_uuid) == uuid), None)
        if reserved is not None and peak is not None and reserved > peak:
            missed.append(reserved - peak)
    return max(missed, default=None)


@dataclass(frozen=True)
class Waterfall:
    """Used memory of one device in one phase, and whose it is. Bytes; None where it is not known."""

    rank: int
    used_bytes: int
    """Used memory by NVML, at the end of the phase."""
    other_processes_bytes: int | None
    context_bytes: int | None
    collectives_bytes: int | None
    """Memory that NCCL took at its first collectives."""
    slack_bytes: int
    """Reserved by torch's allocator and in no tensor, even at the phase's peak."""
    allocated_bytes: int
    """In tensors at the phase's peak."""
    allocated: Instant | None
    """The allocated bytes by category."""

    @property
    def unexplained_bytes(self) -> int:
        """The part of the used memory that none of the known parts explains; negative where they overlap."""
        outside = (self.other_processes_bytes, self.context_bytes, self.collectives_bytes)
        known = sum(value for value in outside if value is not None)
        return self.used_bytes - known - self.slack_bytes - self.allocated_bytes


def waterfall(trial: Trial) -> Waterfall | None:
    """The waterfall of the phase at whose end NVML read most, on the rank that had it; None without NVML.

    Torch keeps what it reserved when tensors go, so what NVML reads at the end of a phase is what held the phase's
    peak, and is split as it was then. Of equal readings, the one with the highest peak of tensors says most.
    """
    rows = ((row, rank) for rank in trial.ranks for row in rank.device_memory)
    readings = [(row.nvml_used_bytes, row, rank) for row, rank in rows if row.nvml_used_bytes is not None]
    if not readings:
        return None
    used, row, rank = max(readings, key=lambda seen: (seen[0], seen[1].peak_allocated_bytes, -seen[2].rank))
    gave_back = row.peak_allocated_bytes > row.reserved_bytes  # torch, within the phase: then split as at its end
    context = rank.context
    instant = end_instant if gave_back else phase_peak
    allocated = row.allocated_bytes if gave_back else row.peak_allocated_bytes
    return Waterfall(
        rank=rank.rank,
        used_bytes=used,
        other_processes_bytes=context.before_bytes if context else None,
        context_bytes=context.context_bytes if context else None,
        collectives_bytes=context.collectives_bytes if context else None,
        slack_bytes=row.reserved_bytes - allocated,
        allocated_bytes=allocated,
        allocated=instant(rank, row.step, row.phase, Place.DEVICE),
    )


def nvml_missing_reason(trials: Iterable[Trial]) -> list[str]:
    """The reasons that samplers gave for having sampled nothing, each once; empty where none ran."""
    summaries = [summary for trial in trials for summary in trial.record.nvml]
    return list(dict.fromkeys(s.reason or "no reason given" for s in summaries if not s.available))
