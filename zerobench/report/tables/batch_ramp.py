"""Trials whose batch grows: each size's tokens, time, speed and peak, beside the same work with a fixed batch."""

from collections.abc import Sequence

from zerobench.report.figures.batch_ramp import BatchFigures, ramped_and_fixed
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, figures_of, lines_of, unit_column
from zerobench.report.words.column_units import byte_unit, show_whole, time_unit

TITLE = "Batch ramp by size"
HOW_TO_READ = (
    "Growing global batch beside the same work at a fixed batch size. step: median of the timed steps of "
    "each size, slowest rank; peak: of a step under the memory ledger, largest rank. Other tables show "
    "the full batch."
)


def batch_ramp_table(trials: Sequence[TrialFigures]) -> Table[BatchFigures]:
    """A row for each size of a batch that grows, and of the same work's fixed one."""
    lines = lines_of(ramped_and_fixed(trials), lambda trial: trial.batches)
    rows = figures_of(lines)
    held, seconds = byte_unit(row.peak_bytes for row in rows), time_unit(row.step_s for row in rows)
    columns: list[Column[BatchFigures]] = [
        Column("tokens per step", lambda row: show_whole(row.tokens), narrow="tokens"),
        Column("steps", lambda row: f"{row.first_step}-{row.last_step}", narrow="steps"),
        Column("timed", lambda row: show_whole(row.timed_steps)),
        unit_column("step", seconds, lambda row: row.step_s, narrow=f"step {seconds.name}"),
        Column("tokens/s", lambda row: show_whole(row.tokens_per_s), narrow="tokens/s"),
        unit_column("device peak", held, lambda row: row.peak_bytes, narrow=f"peak {held.name}"),
    ]
    return Table(TITLE, HOW_TO_READ, columns, lines)
