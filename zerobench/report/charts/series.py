"""Which trials stand on one line, and how the lines are called: trials alike in all but what a chart varies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from zerobench.report.column_units import plain
from zerobench.report.frames.schema import KEYS
from zerobench.spec.axes import LINE_COLUMNS
from zerobench.spec.axis import Column

MOST_LINES = 16
"""Lines in one chart."""

_NAMES_ONE = {"trial_id", "config_hash", "repeat", "zero_stage"}
"""Keys that name a trial, or follow from its strategy, and are no axis of it."""

ALIKE = (*(name for name in KEYS if name not in _NAMES_ONE), "gpu", "settings")
"""What makes trials alike, but for what a chart varies: all that defines a trial (schema.KEYS), the GPU that it is
predicted for, and `settings`, DeepSpeed's keys that the sweep sets. A test holds that no axis is missing."""

_COMPARED = {"strategy", "offload_optimizer", "offload_param", "optimizer", "evidence", "settings"}
"""What lines are drawn beside each other for; in all else they had better be alike."""


_COLUMNS = {column.name: column for column in (Column("run_id", str, line=lambda value: f"@ {value}"), *LINE_COLUMNS)}
"""What the name of a line may say, in its order."""


def _text(name: str, value: Any) -> str:
    """How a line's name writes a value of the column; nothing where there is none, or it is the usual one."""
    column = _COLUMNS[name]
    return "" if column.line is None or pd.isna(value) or value == column.silent else column.line(value)


def with_series(
    trials: pd.DataFrame, x: str, varying: Sequence[str], fixed: Sequence[str] = ()
) -> tuple[pd.DataFrame, int]:
    """Those of `trials` that stand on a line, with `series` (a number) and `series_name`; and how many lines there are.

    A line joins trials alike in ALIKE but for the columns `varying`, and in `fixed`, and has two values of the column
    `x` at least. Of more than MOST_LINES those are kept that are alike in most but strategy and offload.
    """
    alike = [name for name in (*ALIKE, *fixed) if name not in varying and name != x]
    found = trials[trials[x].notna()].copy()
    found["series"] = found.groupby(alike, sort=False, dropna=False).ngroup()
    found["frame"] = found.groupby([name for name in alike if name not in _COMPARED], sort=False, dropna=False).ngroup()
    columns = {
        "frame": ("frame", "first"),
        "length": (x, "nunique"),
        "ranks": ("world_size", "max"),
        "size": ("y", "max"),
    }
    order = found.groupby("series").agg(**columns)
    order = order[order["length"] >= 2]
    kept = found[found["series"].isin(_most_comparable(order))].copy()
    kept["series_name"] = _names(kept, alike)
    return kept, len(order)


def _most_comparable(order: pd.DataFrame) -> list[int]:
    """At most MOST_LINES of the lines in `order`: those whose `frame`, what they are alike in, has most lines, on most
    ranks, where stages differ most.

    A second frame is added only where all of it has room.
    """
    columns = {
        "length": ("length", "max"),
        "number": ("size", "size"),
        "ranks": ("ranks", "max"),
        "size": ("size", "max"),
    }
    frames = order.groupby("frame").agg(**columns).sort_values([*columns], ascending=False, kind="stable")
    fits = (frames["number"].cumsum() <= MOST_LINES).cummin()
    fits.iloc[:1] = True
    return order[order["frame"].isin(frames.index[fits])].index[:MOST_LINES].tolist()


def left_out_sentence(shown: pd.DataFrame, number: int) -> str:
    """What a caption says of lines that are not drawn."""
    drawn = shown["series"].nunique()
    return (
        "" if drawn >= number else f" Of {number:,} lines {drawn} are drawn: those that differ least in other things."
    )


def _names(trials: pd.DataFrame, alike: Sequence[str]) -> list[str]:
    """What tells each trial's line from the others; the strategy in any case."""
    told = [name for name in _COLUMNS if name in alike and (name == "strategy" or len(trials[name].unique()) > 1)]
    others = [name for name in told if name != "settings"]  # each stage has its own: those that no other reads
    if trials.groupby(others, dropna=False)["series"].nunique().max() == 1:
        told = others
    return [plain(" ".join(text for name in told if (text := _text(name, row[name])))) for _, row in trials.iterrows()]
