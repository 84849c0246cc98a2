"""The Markdown table of trials whose batch grows, beside the same work with a fixed batch."""

from __future__ import annotations

from collections.abc import Iterator

from zerobench.report.column_units import byte_unit, show_whole, time_unit
from zerobench.report.frames.run_frames import RunFrames
from zerobench.report.grids import Grid
from zerobench.report.markdown.tables import MOST_ROWS, Row, evidence, rows_of
from zerobench.report.markdown.text import paragraph, table
from zerobench.report.terminal.layout import WIDE, Column


def ramp_lines(frames: RunFrames) -> Iterator[str]:
    """A row for each size of the batch; nothing where no trial's batch grows."""
    rows = ramp_rows(frames)
    if not rows:
        return
    held, seconds = byte_unit(row["peak_bytes"] for row in rows), time_unit(row["step_s"] for row in rows)
    yield paragraph(
        f"The global batch as it grows, beside the same work with a fixed batch. Times in {seconds.name}: medians over "
        f"the timed steps of each size, of the slowest rank in each. Peak in {held.name}: device memory of a step "
        "under the ledger, of the rank with the largest. The tables above have the figures of the full batch."
    )
    yield ""
    columns: list[Column[Row]] = [
        Column("trial", "trial", lambda row: row["label"], is_text=True),
        Column("evidence", "evidence", evidence, is_text=True),
        Column("tokens a step", None, lambda row: show_whole(row["tokens"])),
        Column("steps", None, lambda row: f"{row['first_step']}-{row['last_step']}"),
        Column("timed", None, lambda row: show_whole(row["timed_steps"])),
        Column("step", None, lambda row: seconds.show(row["step_s"])),
        Column("tokens/s", None, lambda row: show_whole(row["tokens_per_s"])),
        Column("peak", None, lambda row: held.show(row["peak_bytes"])),
    ]
    grid = Grid.of(columns, rows[:MOST_ROWS], WIDE)
    yield from table(grid.headers, grid.is_text, grid.rows)
    if len(rows) > MOST_ROWS:
        yield ""
        yield paragraph(f"{len(rows) - MOST_ROWS} more rows are left out; the page has them.")


def ramp_rows(frames: RunFrames) -> list[Row]:
    """Of each ramped trial, and of each that does the same with a fixed batch, the sizes, with the trial's columns."""
    trials = {(row["run_id"], row["trial_id"]): row for row in rows_of(frames.trials)}
    ramped = set(frames.batches.loc[frames.batches["is_ramped"].astype(bool), "work"])
    sizes = frames.batches[frames.batches["work"].isin(ramped)]
    return [{**trials[row["run_id"], row["trial_id"]], **row} for row in rows_of(sizes)]
