"""The table of a frontier: the most that fits, by stage and offload, and which memory ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from zerobench.report.choice import ROOM
from zerobench.report.column_units import MISSING, byte_unit, plain, show_whole
from zerobench.report.plan.rows import PlanRow, evidence_words
from zerobench.report.terminal.layout import Section
from zerobench.report.trials import num_params
from zerobench.spec.cluster import Cluster
from zerobench.spec.frontier import Frontier
from zerobench.spec.frontier_axes import FrontierAxis
from zerobench.spec.trial import Evidence
from zerobench.units import format_bytes, format_count


@dataclass(frozen=True)
class FrontierRow:
    """What was found of one cell."""

    label: str
    frontier: Frontier
    row: PlanRow | None
    """The largest that fits; None where nothing does."""


def frontier_section(axis: FrontierAxis, rows: Sequence[FrontierRow], cluster: Cluster, width: int) -> Section:
    """The table; every figure in it is predicted."""
    unit = byte_unit([row.row.device.needed_bytes for row in rows if row.row and row.row.need])
    headers = [
        "largest",
        *(["parameters"] if axis.name == "model" else []),
        "too large",
        "device",
        "host a node",
        "ends",
    ]
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1 if width >= 80 else 0, 0, 0))
    grid.add_column(Text("trial"), overflow="fold", min_width=5)
    for header in headers:
        grid.add_column(Text(header), justify="right", overflow="fold")
    for one in rows:
        cells = [_largest(one, axis), *([_parameters(one)] if axis.name == "model" else []), _too_large(one, axis)]
        needed = [None, None] if one.row is None else [one.row.device.needed_bytes, one.row.host.needed_bytes]
        grid.add_row(Text(plain(one.label)), *cells, *map(unit.show, needed), ends(one))
    how = evidence_words(one.row for one in rows if one.row) or Evidence.SIMULATED
    title = f"Predicted ({how}): the largest {axis.name.replace('-', ' ')} that fits, in {axis.words}"
    return Section(title, _caption(cluster, unit.name) + _left_out(rows), grid)


def _caption(cluster: Cluster, unit: str) -> str:
    host = format_bytes(cluster.host_memory_bytes) if cluster.host_memory_bytes else "not given, and not judged"
    device = format_bytes(cluster.device_memory_bytes)
    return (
        f"It fits with {ROOM:.0%} room: one {cluster.gpu.name} has {device}; a node's host memory: {host}. device, "
        f"host a node: what the largest needs, {unit}. ends: the memory that `too large` would exceed; limit: nothing "
        "larger is tried."
    )


def _left_out(rows: Sequence[FrontierRow]) -> str:
    """What a search by formula cannot see: near the limit it is a tenth and more where blocks are large."""
    if not any(one.row and one.row.evidence is Evidence.FORMULA for one in rows):
        return ""
    return (
        " By formula memory has no gaps, as with PYTORCH_ALLOC_CONF=expandable_segments:True. With torch's defaults up "
        "to a quarter is lost in gaps: the simulator knows them."
    )


def _largest(one: FrontierRow, axis: FrontierAxis) -> str:
    return "none" if one.frontier.largest is None else show_whole(one.frontier.largest.value * axis.unit)


def _too_large(one: FrontierRow, axis: FrontierAxis) -> str:
    return MISSING if one.frontier.too_large is None else show_whole(one.frontier.too_large.value * axis.unit)


def _parameters(one: FrontierRow) -> str:
    return MISSING if one.row is None else format_count(num_params(one.row.trial))


def ends(one: FrontierRow) -> str:
    """Which memory is the scarcer at the largest that fits, or `limit` where nothing larger was tried."""
    if one.frontier.too_large is None:
        return "limit"
    if one.row is None:
        return MISSING
    device, host = one.row.device.room, one.row.host.room
    return "host" if host is not None and (device is None or host < device) else "device"
