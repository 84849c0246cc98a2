"""The table of a measured frontier."""

from collections.abc import Callable, Iterator, Sequence

from zerobench.common.units import format_bytes, format_count
from zerobench.config.derived.frontier import Frontier, Try
from zerobench.config.derived.frontier_axes import FrontierAxis
from zerobench.config.trial.trial import Evidence
from zerobench.records.trials import num_params
from zerobench.report.figures.name import TrialName
from zerobench.report.figures.run.run_frontier import Limit, RunFrontierRow, ends, words_of
from zerobench.report.tables.model import Column, Line, Table, of_part
from zerobench.report.words.column_units import MISSING, byte_unit, show_number, show_percent, show_whole

SPARED = ("TFLOP/s", "room, %", "tokens/s")
"""Columns that a narrow terminal goes without, the first of them first; and all do where they say nothing."""


def run_frontier_table(
    axis: FrontierAxis, rows: Sequence[RunFrontierRow], limit: Limit, device: str | None, width: int
) -> Table[RunFrontierRow]:
    """Predicted and measured side by side; `device` names the GPU that ranks compute on, None for CPU ranks."""
    unit = byte_unit([_needed(row) for row in rows])
    cells: dict[str, Callable[[RunFrontierRow], str]] = {
        "predicted": lambda row: edge(row.predicted, axis),
        "measured": lambda row: edge(row.measured, axis),
        "error": _error,
        "parameters": of_part(
            lambda row: row.largest if axis.name == "model" else None, lambda trial: format_count(num_params(trial))
        ),
        "too large": of_part(lambda row: row.measured, lambda frontier: axis_value(frontier.too_large, axis)),
        "needs": lambda row: unit.show(_needed(row)),
        "room, %": of_part(_needed, lambda needed: show_percent(1 - needed / limit.capacity_bytes)),
        "tokens/s": lambda row: show_whole(row.speed.tokens_per_s if row.speed else None),
        "TFLOP/s": lambda row: show_number(row.speed.tflops_per_gpu if row.speed else None),
        "tries": of_part(lambda row: row.measured, lambda frontier: str(len(frontier.tries))),
        "ends": ends,
    }
    columns = [Column(name, cell, narrow=name, is_text=name == "ends", is_whole=True) for name, cell in cells.items()]
    kept = [column for column in columns if column.name not in set(_left_out(columns, rows, width))]
    speed = ", ".join(column.name for column in kept if column.name in {"tokens/s", "TFLOP/s"})
    title = f"Measured: largest {axis.name.replace('-', ' ')} that fits, in {words_of(axis, device)}"
    lines = [Line(TrialName("", row.label, Evidence.MEASURED.value, device), row) for row in rows]
    return Table(title, _caption(limit, device or "the CPU", unit.name, speed), kept, lines)


def _left_out(columns: Sequence[Column[RunFrontierRow]], rows: Sequence[RunFrontierRow], width: int) -> Iterator[str]:
    """Columns that say nothing of those that may be spared, then as many as there is no room for."""
    texts = {"trial": [row.label for row in rows]}
    texts |= {column.name: [column.name, *map(column.cell, rows)] for column in columns}
    for name in (*SPARED, "parameters"):
        if set(texts[name][1:]) <= {MISSING}:
            del texts[name]
            yield name
    for name in SPARED:
        if sum(2 + max(map(len, column)) for column in texts.values()) - 2 > width and texts.pop(name, []):
            yield name


def _caption(limit: Limit, device: str, unit: str, speed: str) -> str:
    size = format_bytes(limit.capacity_bytes)
    if limit.is_given:
        fits = f"Fits: peak tensor memory per rank at most {size} of its device ({device})"
        needs = f"needs: peak of the largest, {unit}"
    else:
        fits = f"Fits: the trial completes on {device} of {size}"
        needs = f"needs: tensors, CUDA context and NCCL of the largest, {unit}"
    return (
        f"{fits}; each try is a trial in fresh processes. predicted: start of the search. too large: "
        f"smallest seen not to fit. {needs}. ends: the memory that `too large` "
        "exceeds; limit: end of the search range." + (f" {speed}: of the largest." if speed else "")
    )


def edge(frontier: Frontier | None, axis: FrontierAxis) -> str:
    """The largest that fits, as the axis counts it."""
    if frontier is None:
        return MISSING
    return "none" if frontier.largest is None else axis_value(frontier.largest, axis)


def axis_value(attempt: Try | None, axis: FrontierAxis) -> str:
    """The value that was tried, in the unit of the axis."""
    return MISSING if attempt is None else show_whole(attempt.value * axis.unit)


def _error(row: RunFrontierRow) -> str:
    """Error of the prediction, where both found something that fits."""
    known = [frontier.largest.value for frontier in (row.predicted, row.measured) if frontier and frontier.largest]
    return show_percent(known[0] / known[1] - 1, signed=True) if len(known) == 2 else MISSING


def _needed(row: RunFrontierRow) -> int | None:
    return None if row.measured is None or row.measured.largest is None else row.measured.largest.peak_bytes
