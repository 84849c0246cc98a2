"""The terminal's table of what was seen of users' own scripts from outside: the host memory of their process trees, and
what NVML saw used on their devices. What each byte was for only a tracker inside of the script can say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.text import Text

from zerobench.records import HostProcess, HostSummary, NvmlDevice
from zerobench.report.column_units import Unit, byte_unit, plain
from zerobench.report.nvml_view import devices_of, why_no_nvml
from zerobench.report.terminal.layout import Column, Section, Shown, table
from zerobench.units import format_seconds


class _Row:
    """The node of one trial on which its processes held most."""

    def __init__(self, shown: Shown) -> None:
        record = shown.trial.record
        self.node: HostSummary = max(record.host, key=lambda one: one.peak_rss_bytes or 0)
        self.rank_peak_bytes = max((one.peak_rss_bytes for one in _ranks(record.host)), default=None)
        devices = [device for device in devices_of(shown.trial) if device.peak_used_bytes is not None]
        device = max(devices, key=_added_bytes, default=None)
        self.gpu_peak_bytes = None if device is None else device.peak_used_bytes
        self.gpu_before_bytes = None if device is None else device.baseline_used_bytes

    @property
    def sizes(self) -> list[int]:
        """What the table's unit is chosen by."""
        values = (self.node.peak_rss_bytes, self.node.peak_pss_bytes, self.gpu_peak_bytes)
        return [value for value in values if value is not None]


def _added_bytes(device: NvmlDevice) -> int:
    """What came to a device since before the command: others' memory is no measure of it."""
    return (device.peak_used_bytes or 0) - (device.baseline_used_bytes or 0)


def _ranks(hosts: Iterable[HostSummary]) -> list[HostProcess]:
    """The processes that were ranks, all of them where none was."""
    everyone = [process for host in hosts for process in host.processes]
    return [process for process in everyone if process.rank is not None] or everyone


def watched_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """One table of the trials that were watched from outside; none where none was."""
    rows = [(one, _Row(one)) for one in shown if one.trial.record.host]
    if not rows:
        return
    unit = byte_unit(size for _, row in rows for size in row.sizes)
    columns = [
        Column[_Row]("processes", "procs", lambda row: str(len(row.node.processes))),
        Column("all, resident", "RSS", _cell(unit, lambda row: row.node.peak_rss_bytes)),
        Column("all, shared once", "PSS", _cell(unit, lambda row: row.node.peak_pss_bytes)),
        Column("largest rank", "rank", _cell(unit, lambda row: row.rank_peak_bytes)),
        Column("control group", "group", _cell(unit, lambda row: row.node.group_peak_bytes)),
        Column("GPU before", "before", _cell(unit, lambda row: row.gpu_before_bytes)),
        Column("GPU peak", "GPU", _cell(unit, lambda row: row.gpu_peak_bytes)),
    ]
    yield Section(
        f"Watched from outside, {unit.name}",
        "Peaks of the whole process tree on the node that held most, sampled; the rank's is the kernel's own. The "
        "control group's has the page cache and strangers in it. GPU: the device to which most was added, by NVML.",
        table(columns, rows, width),
        [_sampling(rows), *_without_gpus(shown)],
    )


def _without_gpus(shown: Sequence[Shown]) -> Iterator[Text]:
    """Why NVML saw nothing, for trials without ranks' records: the table of NVML speaks for the others."""
    for reason in why_no_nvml(one.trial for one in shown if one.trial.record.host and not one.trial.ranks):
        yield Text(f"No GPU was sampled: {plain(reason)}.", style="dim")


def _cell(unit: Unit, value: Callable[[_Row], int | None]) -> Callable[[_Row], str]:
    return lambda row: unit.show(value(row))


def _sampling(rows: Sequence[tuple[Shown, _Row]]) -> Text:
    """How the sums were sampled, at their worst."""
    every = max(row.node.interval_s for _, row in rows)
    gap = max((row.node.largest_gap_s or 0.0 for _, row in rows), default=0.0)
    text = f"Host memory was sampled every {format_seconds(every)}; the largest gap was {format_seconds(gap)}."
    return Text(text, style="dim")
