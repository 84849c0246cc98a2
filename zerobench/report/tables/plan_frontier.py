"""The table of a frontier: the most that fits, by stage and offload, and which memory ends it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerobench.common.units import format_count
from zerobench.config.derived.cluster import Cluster
from zerobench.config.derived.frontier import Frontier
from zerobench.config.derived.frontier_axes import FrontierAxis
from zerobench.config.trial.trial import Evidence
from zerobench.records.trials import num_params
from zerobench.report.figures.fit import ROOM
from zerobench.report.figures.trial import TrialFigures, evidence_words
from zerobench.report.tables.model import Column, of_part
from zerobench.report.tables.part import Listing, Part
from zerobench.report.tables.plan_memory import there_is
from zerobench.report.tables.run_frontier import axis_value, edge
from zerobench.report.words.column_units import MISSING, byte_unit


@dataclass(frozen=True)
class FrontierRow:
    """Result for one cell."""

    label: str
    frontier: Frontier
    row: TrialFigures | None
    """The largest that fits; None where nothing does."""


def frontier_part(axis: FrontierAxis, rows: Sequence[FrontierRow], cluster: Cluster) -> Part:
    """The table; every figure in it is predicted."""
    unit = byte_unit([row.row.device.needed_bytes for row in rows if row.row and row.row.need])
    cells: dict[str, Callable[[FrontierRow], str]] = {
        "largest": lambda row: edge(row.frontier, axis),
        **(
            {"parameters": of_part(lambda cell: cell.row, lambda row: format_count(num_params(row.trial)))}
            if axis.name == "model"
            else {}
        ),
        "too large": lambda row: axis_value(row.frontier.too_large, axis),
        "device": of_part(lambda cell: cell.row, lambda row: unit.show(row.device.needed_bytes)),
        "host per node": of_part(lambda cell: cell.row, lambda row: unit.show(row.host.needed_bytes)),
        "ends": ends,
    }
    columns: list[Column[FrontierRow]] = [
        Column("trial", lambda row: row.label, narrow="trial", is_text=True),
        *(Column(name, cell, narrow=name) for name, cell in cells.items()),
    ]
    how = evidence_words(row.row for row in rows if row.row) or Evidence.SIMULATED
    title = f"Predicted ({how}): largest {axis.name.replace('-', ' ')} that fits, in {axis.words}"
    return Part(title, _caption(cluster, unit.name) + _left_out(rows), Listing(columns, rows))


def _caption(cluster: Cluster, unit: str) -> str:
    return (
        f"The largest that fits with {ROOM:.0%} room. {there_is(cluster)} device, host per node: needed by the "
        f"largest, {unit}. ends: the memory that `too large` exceeds; limit: end of the search range."
    )


def _left_out(rows: Sequence[FrontierRow]) -> str:
    """Limits of the formulas for some work: near the limit it is a tenth and more where blocks are large."""
    if not any(row.row and row.row.lacks_allocator for row in rows):
        return ""
    return (
        " Formulas of such work leave out fragmentation, as with PYTORCH_ALLOC_CONF=expandable_segments:True. With "
        "torch's defaults it costs up to a quarter; --evidence simulated includes it."
    )


def ends(row: FrontierRow) -> str:
    """The scarcer memory at the largest that fits, or `limit` where nothing larger was tried."""
    if row.frontier.too_large is None:
        return "limit"
    if row.row is None:
        return MISSING
    device, host = row.row.device.room, row.row.host.room
    return "host" if host is not None and (device is None or host < device) else "device"
