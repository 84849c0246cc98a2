"""A plan's memory: what lies where at the peak, and whether device and host hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from zerobench.common.units import format_bytes
from zerobench.common.vocabulary import StepKind
from zerobench.config.derived.cluster import Cluster
from zerobench.records.instants import Instant
from zerobench.report.figures.capacity import DeviceNeed
from zerobench.report.figures.fit import ROOM
from zerobench.report.figures.trial import TrialFigures, evidence_words
from zerobench.report.tables.memory import category_columns
from zerobench.report.tables.model import Column, Line, Table
from zerobench.report.words.column_units import MISSING, byte_unit, show_percent


def memory_tables(rows: Sequence[TrialFigures], cluster: Cluster) -> Iterator[Table[Any]]:
    """The device by category at the steady peak, then all that must fit against what there is."""
    peaks = [Line(row.name, row.steady_peak) for row in rows if row.steady_peak is not None]
    yield _categories(peaks, evidence_words(rows))
    yield _fit(rows, cluster)


def _categories(peaks: Sequence[Line[Instant]], how: str) -> Table[Instant]:
    unit = byte_unit(line.figures.total_bytes for line in peaks)
    columns: list[Column[Instant]] = [
        Column("at", lambda instant: instant.phase.value, is_text=True),
        *category_columns(unit),
    ]
    caption = (
        "The columns add up to the peak. optimizer: fp32 weights and moments. buffers: communication, "
        "including gathered parameters."
    )
    return Table(
        f"Predicted ({how}): device memory of one GPU at the peak of a steady step, {unit.name}",
        f"{caption} small: inputs, model buffers, rounding.",
        columns,
        peaks,
        narrow_caption=f"{caption} temp: temporaries, inputs, rounding.",
    )


def _fit(rows: Sequence[TrialFigures], cluster: Cluster) -> Table[TrialFigures]:
    unit = byte_unit([row.device.needed_bytes for row in rows] + [row.host.needed_bytes for row in rows])

    def part(size: Callable[[DeviceNeed], int]) -> Callable[[TrialFigures], str]:
        return lambda row: unit.show(None if row.need is None else size(row.need))

    def slack(row: TrialFigures) -> str:
        """Not known, and not in the total, without an allocator."""
        return MISSING if row.lacks_allocator else part(lambda need: need.slack_bytes)(row)

    def of_need(step: StepKind) -> Callable[[TrialFigures], str]:
        return lambda row: unit.show(row.needs[step].total_bytes if step in row.needs else None)

    columns: list[Column[TrialFigures]] = [
        Column("start-up", of_need(StepKind.FIRST), narrow="start"),
        Column("steps", of_need(StepKind.STEADY), narrow="steps"),
        Column("tensors", part(lambda need: need.tensors_bytes), narrow="tensors"),
        Column("allocator slack", slack, narrow="slack"),
        Column("context + NCCL", part(lambda need: need.context_bytes + need.collectives_bytes), narrow="ctx"),
        Column("total", part(lambda need: need.total_bytes), narrow="total"),
        Column("room", lambda row: show_percent(row.device.room), "%", narrow="room%"),
        Column("host per node", lambda row: unit.show(row.host.needed_bytes), narrow="host"),
        Column("room", lambda row: show_percent(row.host.room), "%", narrow="room%"),
        Column("fits", lambda row: row.fit.verdict or MISSING, narrow="fits"),
    ]
    return Table(
        f"Predicted ({evidence_words(rows)}): what must fit, {unit.name}",
        _fit_caption(cluster, ""),
        columns,
        [Line(row.name, row) for row in rows],
        narrow_caption=_fit_caption(cluster, " (ctx)"),
    )


def _fit_caption(cluster: Cluster, context: str) -> str:
    return (
        f"{there_is(cluster)} total: the larger of start-up and steps; tensors at its peak + allocator slack + CUDA "
        f"context and NCCL{context} add up to it. host: all ranks "
        f"of a node. tight: fits with less than {ROOM:.0%} room."
    )


def there_is(cluster: Cluster) -> str:
    """The memory that needs are held against."""
    host = format_bytes(cluster.host_memory_bytes) if cluster.host_memory_bytes else "not checked (--host-memory)"
    device = format_bytes(cluster.device_memory_bytes)
    rule = f", {cluster.gpu.capacity_rule}" if cluster.gpu.capacity_rule else ""
    return f"Device memory: {device} ({cluster.gpu.name}{rule}); host memory per node: {host}."
