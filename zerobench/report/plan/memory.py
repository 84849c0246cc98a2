"""Terminal tables of a plan's memory: what lies where at the peak, and whether device and host hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from zerobench.report.capacity import DeviceNeed
from zerobench.report.choice import ROOM
from zerobench.report.column_units import byte_unit, show_percent
from zerobench.report.memory_view import Instant
from zerobench.report.plan.rows import PlanRow, evidence_words
from zerobench.report.terminal.layout import WIDE, Column, Section, Shown, table
from zerobench.report.terminal.memory_tables import category_columns
from zerobench.spec.cluster import Cluster
from zerobench.spec.trial import Evidence
from zerobench.units import format_bytes


def memory_sections(rows: Sequence[PlanRow], cluster: Cluster, width: int) -> Iterator[Section]:
    """Device memory by category at the steady peak, then all that must fit against what there is."""
    peaks = [(row.shown, row.steady) for row in rows if row.steady is not None]
    if peaks:
        yield _categories(peaks, evidence_words(rows), width)
    if rows:
        yield _fit(rows, cluster, width)


def _categories(peaks: Sequence[tuple[Shown, Instant]], how: str, width: int) -> Section:
    unit = byte_unit(instant.total_bytes for _, instant in peaks)
    columns = [
        Column[Instant]("at", None, lambda instant: instant.phase.value, is_text=True),
        *category_columns(unit),
    ]
    return Section(
        f"Predicted ({how}): device memory of one GPU at the peak of a steady step, {unit.name}",
        "The columns add up to the peak. optimizer: fp32 weights and moments. buffers: for communication, gathered "
        "parameters included. "
        + ("small: inputs, model buffers, rounding." if width >= WIDE else "temp: temporaries, inputs, rounding."),
        table(columns, peaks, width),
    )


def _fit(rows: Sequence[PlanRow], cluster: Cluster, width: int) -> Section:
    unit = byte_unit([row.device.needed_bytes for row in rows] + [row.host.needed_bytes for row in rows])

    def part(size: Callable[[DeviceNeed], int]) -> Callable[[PlanRow], str]:
        return lambda row: unit.show(None if row.need is None else size(row.need))

    def slack(row: PlanRow) -> str:
        """No formula knows it."""
        return unit.show(None if row.need is None or row.evidence is Evidence.FORMULA else row.need.slack_bytes)

    columns = [
        Column[PlanRow]("steady peak", "steady", lambda row: unit.show(row.steady.total_bytes if row.steady else None)),
        Column[PlanRow]("start-up peak", "start", lambda row: unit.show(row.start_up_bytes)),
        Column("allocator slack", "slack", slack),
        Column("context + NCCL", "ctx", part(lambda need: need.context_bytes + need.collectives_bytes)),
        Column("total", "total", part(lambda need: need.total_bytes)),
        Column[PlanRow]("room, %", "room%", lambda row: show_percent(row.device.room)),
        Column[PlanRow]("host a node", "host", lambda row: unit.show(row.host.needed_bytes)),
        Column[PlanRow]("room, %", "room%", lambda row: show_percent(row.host.room)),
        Column("fits", "fits", verdict),
    ]
    return Section(
        f"Predicted ({evidence_words(rows)}): what must fit, {unit.name}",
        _fit_caption(cluster, width) + _at_most(rows),
        _table(columns, rows, width),
    )


def _fit_caption(cluster: Cluster, width: int) -> str:
    host = format_bytes(cluster.host_memory_bytes) if cluster.host_memory_bytes else "not given, and not judged"
    context = "" if width >= WIDE else " (ctx)"
    return (
        f"One {cluster.gpu.name} has {format_bytes(cluster.device_memory_bytes)}; a node's host memory: {host}. total: "
        f"the larger peak, what the allocator cannot give back beside it (slack), CUDA context and NCCL{context}. "
        f"host: all ranks of a node. tight: fits with less than {ROOM:.0%} room."
    )


def _at_most(rows: Sequence[PlanRow]) -> str:
    """What torch's own counters cannot tell: when each part of the slack was largest."""
    is_emulated = any(row.evidence is Evidence.EMULATED for row in rows)
    return " slack of emulated GPUs: at most so much." if is_emulated else ""


def _table(columns: Sequence[Column[PlanRow]], rows: Sequence[PlanRow], width: int) -> Table:
    return table(columns, [(row.shown, row) for row in rows], width)


def verdict(row: PlanRow) -> str:
    """`yes`, `tight`, or which memory is too small; `-` where nothing is known of the device, `not judged` where the
    device holds it and nobody said how much memory the host has.
    """
    if row.device.needed_bytes is None:
        return "-"
    lacking = [name for name, fit in (("device", row.device), ("host", row.host)) if not fit.fits]
    if lacking:
        return "no" if len(lacking) == 2 else f"no: {lacking[0]}"
    if not row.is_judged:
        return "not judged"
    return "yes" if row.has_room else "tight"
