"""Terminal table of trials whose batch grows: each size's tokens, time, speed and peak, beside the fixed batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerobench.report.batch_ramp import BatchFigures, batch_figures, with_their_fixed
from zerobench.report.column_units import byte_unit, show_whole, time_unit
from zerobench.report.terminal.layout import Column, Section, Shown, table


def ramp_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """The sizes of the batches of ramped trials, and of those that do the same with a fixed batch."""
    trials = with_their_fixed((one, one.trial) for one in shown)
    rows = [(one, figures) for one, trial in trials for figures in batch_figures(trial)]
    if rows:
        yield _batches(rows, width)


def _batches(rows: list[tuple[Shown, BatchFigures]], width: int) -> Section:
    held = byte_unit(figures.peak_bytes for _, figures in rows)
    seconds = time_unit(figures.step_s for _, figures in rows if figures.step_s is not None)
    columns = [
        Column[BatchFigures]("tokens a step", "tokens", lambda figures: show_whole(figures.tokens)),
        Column[BatchFigures]("steps", "steps", lambda figures: f"{figures.first_step}-{figures.last_step}"),
        Column[BatchFigures]("timed", None, lambda figures: str(figures.timed_steps)),
        Column[BatchFigures](
            f"step, {seconds.name}", f"step {seconds.name}", lambda figures: seconds.show(figures.step_s)
        ),
        Column[BatchFigures]("tokens/s", "tokens/s", lambda figures: show_whole(figures.tokens_per_s)),
        Column[BatchFigures](
            f"device peak, {held.name}", f"peak {held.name}", lambda figures: held.show(figures.peak_bytes)
        ),
    ]
    return Section(
        "Batch ramp, size by size",
        "The global batch as it grows, beside the same work with a fixed batch: median of the timed steps of each "
        "size, the slowest rank of each; peak of a step under the ledger, on the rank with the largest. Other tables "
        "have the figures of the full batch.",
        table(columns, rows, width),
    )
