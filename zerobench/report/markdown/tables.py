"""The tables of a Markdown report: memory by category, throughput, how the trials ended, how far predictions were off.

A prediction must not pass for a measurement: each of its rows says `predicted` and by what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from zerobench.report.column_units import (
    Unit,
    byte_unit,
    plain,
    show_error,
    show_number,
    show_percent,
    show_whole,
    time_unit,
)
from zerobench.report.evidence import evidence_text
from zerobench.report.frames.doubts import disagreements
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.markdown.text import bullets, paragraph, table
from zerobench.report.memory_view import GROUPS
from zerobench.report.recovery import distance_text
from zerobench.report.render.markdown import MOST_ROWS
from zerobench.report.terminal.layout import Column

Row = Mapping[str, Any]
Key = tuple[str, str]
"""run_id and trial_id."""

_KEY = ["run_id", "trial_id"]


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame as mappings; what is not available is None."""
    columns = {
        str(name): [None if gone else v for v, gone in zip(frame[name].tolist(), frame[name].isna(), strict=True)]
        for name in frame.columns
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _key(row: Row) -> Key:
    return row["run_id"], row["trial_id"]


def evidence(row: Row) -> str:
    """How the figures of a trial came to be."""
    return evidence_text(row["evidence"], row["gpu"])


def memory_lines(frames: RunFrames) -> Iterator[str]:
    """Device memory of one GPU at the peak of a steady step, by category; nothing where nobody looked."""
    rows = _memory_rows(frames)
    if not rows:
        return
    unit = byte_unit(row["peak"] for row in rows)
    yield paragraph(
        f"{unit.name} of one GPU (a CPU rank where there is none) at the peak of a steady step: the rank with the "
        "largest peak, at that instant. The categories add up to the peak. optimizer: fp32 weights and moments. "
        "buffers: for communication, gathered parameters included. temporaries: what kernels work in on a CPU "
        "included. small: inputs, rounding, workspaces. start-up: the peak of initialization and the first step. host "
        "peak: of one rank, over all steps. of the GPU: the larger of the device peaks."
    )
    yield ""
    yield from _table(_memory_columns(unit), rows)


def _memory_rows(frames: RunFrames) -> list[Row]:
    """A row for each trial whose device peak in a steady step is known, by the groups of categories."""
    device = frames.peaks[frames.peaks["place"] == "device"]
    parts: dict[Key, dict[str, int]] = {}
    for row in rows_of(device):
        parts.setdefault(_key(row), {})[row["category"]] = row["bytes"]
    by_trial = frames.ranks.groupby(_KEY)[["device_peak_bytes", "first_peak_bytes"]].max()
    peaks = dict(zip(by_trial.index, rows_of(by_trial), strict=True))
    found: list[Row] = []
    for row in rows_of(frames.trials):
        peak = peaks.get(_key(row), {}).get("device_peak_bytes")
        if peak is not None:
            groups = _groups(parts.get(_key(row), {}), peak)
            found.append({**row, **groups, "peak": peak, "start_up": peaks[_key(row)]["first_peak_bytes"]})
    return found


def _groups(categories: Mapping[str, int], peak: int) -> dict[str, int | None]:
    """The bytes of each group, which add up to the peak; None where the ledger has no categories."""
    if not categories:
        return dict.fromkeys(GROUPS)
    groups: dict[str, int | None] = {
        name: sum(categories.get(one, 0) for one in members) for name, members in GROUPS.items()
    }
    groups["unattributed"] = (groups["unattributed"] or 0) + peak - sum(categories.values())
    return groups


def _memory_columns(unit: Unit) -> list[Column[Row]]:
    shown = (
        "parameters",
        "gradients",
        "optimizer",
        "buffers",
        "activations",
        "logits",
        "temporaries",
        "small",
        "unattributed",
    )
    return [
        *_NAMES,
        *(_number(name, _in(unit, name)) for name in shown),
        _number("peak", _in(unit, "peak")),
        _number("start-up", _in(unit, "start_up")),
        _number("host peak", _in(unit, "host_peak_bytes")),
        _number("of the GPU, %", lambda row: show_percent(_share(row))),
    ]


_NAMES: list[Column[Row]] = [
    Column("trial", "trial", lambda row: row["label"], is_text=True),
    Column("evidence", "evidence", evidence, is_text=True),
]


def _number(header: str, cell: Callable[[Row], str]) -> Column[Row]:
    return Column(header, header, cell)


def _in(unit: Unit, name: str) -> Callable[[Row], str]:
    return lambda row: unit.show(row[name])


def _share(row: Row) -> float | None:
    capacity = row["capacity_bytes"]
    return row["device_peak_bytes"] / capacity if capacity and row["device_peak_bytes"] is not None else None


def throughput_lines(frames: RunFrames) -> Iterator[str]:
    """Step times and throughput of the trials that timed steps; nothing where none did."""
    rows = [row for row in rows_of(frames.trials) if row["step_time_s_median"] is not None]
    if not rows:
        return
    unit = time_unit(row["step_time_s_median"] for row in rows)
    yield paragraph(
        f"Times in {unit.name}: medians over the timed steps, of the slowest rank in each. tokens/s: all ranks. "
        "TFLOP/s and MFU: model FLOPs of one GPU. A solo trial's step has no communication in it."
    )
    yield ""
    columns = [
        *_NAMES,
        _number("step", _in(unit, "step_time_s_median")),
        _number("forward", _in(unit, "forward_s")),
        _number("backward", _in(unit, "backward_s")),
        _number("update", _in(unit, "step_s")),
        _number("tokens/s", lambda row: show_whole(row["tokens_per_s"])),
        _number("TFLOP/s", lambda row: show_number(row["tflops_per_gpu"])),
        _number("MFU, %", lambda row: show_percent(row["mfu"])),
        _number("last loss", lambda row: "-" if row["loss_last"] is None else f"{row['loss_last']:.4f}"),
        _number("loss diff", lambda row: distance_text(row["loss_parity"])),
        _number("norm diff", lambda row: distance_text(row["norm_parity"])),
    ]
    yield from _table(columns, rows)


def outcome_lines(frames: RunFrames) -> Iterator[str]:
    """How many trials ended how, and why those without figures have none."""
    rows = rows_of(frames.trials)
    statuses = [row["status"].replace("_", " ") for row in rows]
    yield paragraph(
        f"{len(rows)} trials: " + ", ".join(f"{statuses.count(s)} {s}" for s in dict.fromkeys(statuses)) + "."
    )
    failed = [row for row in rows if row["status"] != "completed"]
    if failed:
        yield ""
        columns: list[Column[Row]] = [
            *_NAMES,
            Column("outcome", "outcome", lambda row: row["status"].replace("_", " "), is_text=True),
            Column("why", "why", lambda row: row["reason"] or row["rule"] or "-", is_text=True),
        ]
        yield from _table(columns, failed)


def error_lines(frames: RunFrames) -> Iterator[str]:
    """How far the predictions of device peaks were off, where the run measured the same work."""
    errors = frames.errors
    peaks = errors[
        (errors["category"] == "total") & (errors["quantity"] == "peak") & errors["error"].notna() & _on_device(errors)
    ]
    if peaks.empty:
        return
    yield paragraph(
        "Totals of device memory by phase, predicted against measured; the largest error of each trial, + where the "
        "prediction was too large."
    )
    yield ""
    labels = {_key(row): row["label"] for row in rows_of(frames.trials)}
    worst = peaks.loc[peaks.groupby(_KEY, sort=False)["error"].apply(lambda each: each.abs().idxmax())]
    rows = [{**row, "label": labels.get(_key(row), row["trial_id"]), "gpu": None} for row in rows_of(worst)]
    columns: list[Column[Row]] = [
        *_NAMES,
        Column("phase", "phase", lambda row: f"{row['step']} {row['phase']}", is_text=True),
        _number("measured, bytes", lambda row: show_whole(row["measured_bytes"])),
        _number("predicted, bytes", lambda row: show_whole(row["predicted_bytes"])),
        _number("error", lambda row: show_error(row["error"])),
    ]
    yield from _table(columns, rows)


def _on_device(errors: pd.DataFrame) -> pd.Series[bool]:
    return errors["place"] == "device"


def caveat_lines(frames: RunFrames) -> list[str]:
    """What a reader must know before believing a figure: void throughput, disagreement, notes of the run."""
    rows = rows_of(frames.trials)
    said = [f"{row['label']}: throughput is void: {row['void']}" for row in rows if row["void"]]
    said += [
        f"{row['label']}: its {name} disagree with those of the reference by {far:.2g}: do not believe its figures"
        for row in rows
        for name, far in disagreements(row)
    ]
    if any(row["evidence"] != "measured" for row in rows):
        said.append("Rows marked predicted were not measured: their ranks did not run together.")
    said += dict.fromkeys(row["note"] for row in rows_of(frames.notes))
    rest = len(said) - MOST_ROWS
    return bullets([*said[:MOST_ROWS], *([f"and {rest} more"] if rest > 0 else [])])


def _table(columns: Sequence[Column[Row]], rows: Sequence[Row]) -> Iterator[str]:
    """The lines of a table, the rest of a long one counted."""
    cells = ([plain(column.cell(row)) for column in columns] for row in rows[:MOST_ROWS])
    yield from table([column.wide or "" for column in columns], [column.is_text for column in columns], cells)
    if len(rows) > MOST_ROWS:
        yield ""
        yield paragraph(f"{len(rows) - MOST_ROWS} more rows are left out; the run's tables have them.")
