"""Users' own scripts watched from outside: the host memory of their process trees, and what NVML saw used on their
devices. The purpose of each byte only a tracker inside of the script can report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerobench.common.units import format_seconds
from zerobench.records.records import HostProcess, HostSummary, NvmlDevice
from zerobench.records.trials import Trial
from zerobench.report.figures.nvml_view import devices_of
from zerobench.report.tables.model import Column, Line, Table, figures_of, in_unit
from zerobench.report.words.column_units import byte_unit

TITLE = "Sampled process tree"


@dataclass(frozen=True)
class WatchedRow:
    """The node of one trial on which its processes held most, and the device to which most was added."""

    node: HostSummary
    rank_peak_bytes: int | None
    device: NvmlDevice | None

    @property
    def gpu_peak_bytes(self) -> int | None:
        """The most that was used of the device."""
        return None if self.device is None else self.device.peak_used_bytes

    @property
    def gpu_before_bytes(self) -> int | None:
        """Memory in use before the command."""
        return None if self.device is None else self.device.baseline_used_bytes


def watched_rows(trial: Trial) -> Iterator[WatchedRow]:
    """The row of a trial that was watched from outside."""
    hosts = trial.record.host
    if hosts:
        devices = [device for device in devices_of(trial) if device.peak_used_bytes is not None]
        yield WatchedRow(
            max(hosts, key=lambda host: host.peak_rss_bytes or 0),
            max((rank.peak_rss_bytes for rank in _ranks(hosts)), default=None),
            max(devices, key=_added_bytes, default=None),
        )


def _added_bytes(device: NvmlDevice) -> int:
    """Bytes added on a device since before the command: others' memory is no measure of it."""
    return (device.peak_used_bytes or 0) - (device.baseline_used_bytes or 0)


def _ranks(hosts: Iterable[HostSummary]) -> list[HostProcess]:
    """The processes that were ranks, all of them where none was."""
    everyone = [process for host in hosts for process in host.processes]
    return [process for process in everyone if process.rank is not None] or everyone


def watched_table(lines: Sequence[Line[WatchedRow]], why_not: Sequence[str]) -> Table[WatchedRow]:
    """A row for each trial that was watched from outside; `why_not`: why NVML sampled nothing in some."""
    rows = figures_of(lines)
    unit = byte_unit(
        size for row in rows for size in (row.node.peak_rss_bytes, row.node.peak_pss_bytes, row.gpu_peak_bytes)
    )
    parts: Mapping[tuple[str, str], Callable[[WatchedRow], int | None]] = {
        ("all, RSS", "RSS"): lambda row: row.node.peak_rss_bytes,
        ("all, PSS", "PSS"): lambda row: row.node.peak_pss_bytes,
        ("largest rank", "rank"): lambda row: row.rank_peak_bytes,
        ("cgroup", "cgroup"): lambda row: row.node.group_peak_bytes,
        ("GPU before", "before"): lambda row: row.gpu_before_bytes,
        ("GPU peak", "GPU"): lambda row: row.gpu_peak_bytes,
    }
    columns: list[Column[WatchedRow]] = [
        Column("processes", lambda row: str(len(row.node.processes)), narrow="procs"),
        *(Column(name, in_unit(unit, value), unit.name, name, narrow) for (name, narrow), value in parts.items()),
    ]
    return Table(
        TITLE,
        (
            "Peaks of the process tree on the largest node. rank: peak RSS of its largest process. "
            "cgroup: includes page cache and other processes. GPU: by NVML, device with the largest "
            "increase."
        ),
        columns,
        lines,
        [*_sampling(rows), *(f"No GPU sampled: {reason}." for reason in why_not)],
        heading=f"{TITLE}, {unit.name}",
    )


def _sampling(rows: Sequence[WatchedRow]) -> Iterator[str]:
    """Sampling of the sums, at their worst."""
    if rows:
        every = max(row.node.interval_s for row in rows)
        gap = max(row.node.largest_gap_s or 0.0 for row in rows)
        yield f"Host memory sampling interval: {format_seconds(every)}; largest gap: {format_seconds(gap)}."
