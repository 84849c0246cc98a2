"""The page's table of checkpoints and faults. It has no drawing: its figures have no axis in common."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from zerobench.report.charts.shown import KEY
from zerobench.report.column_units import byte_unit, show_number, show_whole, time_unit
from zerobench.report.figure import Figure
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.recovery import distance_text

_CAPTION = (
    "A table, since its figures have no axis in common. A save lasts until every file is on the disk (fsync), a load "
    "begins with files that the kernel was asked to forget; GB/s: the checkpoint's size over that; more: resident "
    "memory that a rank takes meanwhile, in a load also optimizer states, which are made then, and what it has read of "
    "a mapped file. Loss difference: the largest after the resume from the uninterrupted loss, 0 is equal to the bit. "
    "Lost: steps done again after a rank was killed; recovered: from its death to the end of the first new step; "
    "restart: from the end of the first launch to the end of the second's first step."
)


def figure(frames: RunFrames) -> Figure | None:
    """What saving, loading and going on cost; None where no trial saves."""
    if frames.checkpoints.empty:
        return None
    rows = frames.checkpoints.merge(frames.trials[[*KEY, "label"]], on=KEY)
    return Figure("checkpoints", "Checkpoints and faults", _CAPTION, None, _table(rows))


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    size = byte_unit(_values(rows, "size_bytes"))
    more = byte_unit(_values(rows, "save_host_bytes", "load_host_bytes"))
    seconds = time_unit(_values(rows, "save_s", "load_s"))
    columns = {"trial": rows["label"], f"on disk, {size.name}": _shown(rows, "size_bytes", size.show)}
    columns[f"by formula, {size.name}"] = _shown(rows, "formula_bytes", size.show)
    for name in ("save", "load"):
        columns[f"{name}, {seconds.name}"] = _shown(rows, f"{name}_s", seconds.show)
        columns[f"{name}, GB/s"] = _shown(rows, f"{name}_bytes_per_s", _gigabytes)
        columns[f"{name}, {more.name} more"] = _shown(rows, f"{name}_host_bytes", more.show)
        if rows[f"{name}_device_bytes"].notna().any():
            columns[f"{name}, {more.name} more on the GPU"] = _shown(rows, f"{name}_device_bytes", more.show)
    columns["resumed on ranks"] = _shown(rows, "resumed_world_size", show_whole)
    columns["converted, s"] = _shown(rows, "convert_s", show_number)
    columns["loss difference"] = _shown(rows, "loss_difference", distance_text)
    columns["steps lost"] = _shown(rows, "steps_lost", show_whole)
    columns["recovered, s"] = _shown(rows, "recover_s", show_number)
    columns["restart, s"] = _shown(rows, "restart_s", show_number)
    return pd.DataFrame(columns)


def _values(rows: pd.DataFrame, *names: str) -> list[float | None]:
    return [None if pd.isna(value) else float(value) for name in names for value in rows[name]]


def _shown(rows: pd.DataFrame, name: str, show: Callable[[float | None], str]) -> list[str]:
    return [show(value) for value in _values(rows, name)]


def _gigabytes(rate: float | None) -> str:
    return show_number(None if rate is None else rate / 1e9)
