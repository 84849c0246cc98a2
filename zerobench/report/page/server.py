"""The page's table of parameter servers: the server's side apart from the workers', as the terminal and Markdown do."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from zerobench.report.column_units import byte_unit, show_number, show_percent, show_whole, time_unit
from zerobench.report.page.grid import Column, Grid, grid
from zerobench.report.page.trials import Trial, evidence_text, is_predicted, rows_with_trials, shown
from zerobench.report.terminal.server_tables import HOW_TO_READ


def sides_grid(sides: pd.DataFrame, trials: Sequence[Trial]) -> Grid:
    """A row for each side of `sides` (schema.SIDES); none where no trial has a server."""
    rows = rows_with_trials(sides, trials)
    all_measured = not any(map(is_predicted, rows))
    held, moved = byte_unit(row["peak_bytes"] for row in rows), byte_unit(row["formula_bytes"] for row in rows)
    seconds = time_unit(row["step_s"] for row in rows)
    columns: list[Column[Trial]] = [
        Column("trial", lambda row: str(row["label"]), is_number=False),
        Column("figures are", lambda row: "" if all_measured else evidence_text(row), is_number=False),
        Column("side", lambda row: str(row["role"]), is_number=False),
        Column("ranks", lambda row: show_whole(row["num_ranks"])),
        Column(f"peak, {held.name}", shown(held.show, "peak_bytes")),
        *(Column(f"{name}, {held.name}", shown(held.show, f"{name}_bytes")) for name in _HELD),
        Column(f"step, {seconds.name}", shown(seconds.show, "step_s")),
        Column(f"waiting, {seconds.name}", shown(seconds.show, "wait_s")),
        Column("waiting, %", lambda row: show_percent(_wait_fraction(row))),
        *(Column(f"{name}, {moved.name}", shown(moved.show, f"{name}_bytes")) for name in ("sent", "received")),
        Column(f"by formula, {moved.name}", shown(moved.show, "formula_bytes")),
        Column("staleness", lambda row: show_number(row["mean_staleness"])),
    ]
    return grid(HOW_TO_READ, columns, rows)


_HELD = ("parameters", "gradients", "optimizer")


def _wait_fraction(row: Trial) -> float | None:
    return row["wait_s"] / row["step_s"] if row["wait_s"] is not None and row["step_s"] else None
