"""The page's table of pipelines: each stage beside the others, its measured bubble beside the ideal one."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from zerobench.report.column_units import MISSING, byte_unit, show_percent, show_whole, time_unit
from zerobench.report.page.grid import Column, Grid, grid
from zerobench.report.page.trials import Trial, evidence_text, is_predicted, rows_with_trials, shown
from zerobench.report.terminal.pipeline_tables import HOW_TO_READ


def stages_grid(stages: pd.DataFrame, trials: Sequence[Trial]) -> Grid:
    """A row for each stage of `stages` (schema.STAGES); none where no trial is a pipeline."""
    rows = rows_with_trials(stages, trials)
    all_measured = not any(map(is_predicted, rows))
    held, moved = byte_unit(row["peak_bytes"] for row in rows), byte_unit(row["formula_bytes"] for row in rows)
    seconds = time_unit(row["step_s"] for row in rows)
    columns: list[Column[Trial]] = [
        Column("trial", lambda row: str(row["label"]), is_number=False),
        Column("figures are", lambda row: "" if all_measured else evidence_text(row), is_number=False),
        Column("stage", lambda row: show_whole(row["rank"])),
        Column("blocks", lambda row: row["blocks"] or MISSING, is_number=False),
        Column("parameters", lambda row: show_whole(row["num_params"])),
        Column(f"peak, {held.name}", shown(held.show, "peak_bytes")),
        *(Column(f"{name}, {held.name}", shown(held.show, f"{name}_bytes")) for name in _HELD),
        Column("in flight", lambda row: show_whole(row["in_flight"])),
        Column(f"step, {seconds.name}", shown(seconds.show, "step_s")),
        Column(f"waiting, {seconds.name}", shown(seconds.show, "wait_s")),
        Column("bubble, %", lambda row: show_percent(row["bubble_fraction"])),
        Column("ideal, %", lambda row: show_percent(row["ideal_fraction"])),
        Column(f"passed, {moved.name}", shown(moved.show, "passed_bytes")),
        Column(f"by formula, {moved.name}", shown(moved.show, "formula_bytes")),
    ]
    return grid(HOW_TO_READ, columns, rows)


_HELD = ("parameters", "gradients", "optimizer", "activations")
