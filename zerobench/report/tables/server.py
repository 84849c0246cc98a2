"""Trials with a parameter server: the server's side apart from the workers'."""

from collections.abc import Sequence

from zerobench.report.figures.server import Side
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Column, Table, figures_of, lines_of, unit_column
from zerobench.report.tables.model_states import states_columns
from zerobench.report.words.column_units import byte_unit, show_number, show_percent, show_whole, time_unit

TITLE = "Parameter server and workers"
HOW_TO_READ = (
    "Largest rank of server and workers; bytes of one rank in a steady step, beside 2 x weights per "
    "worker (Li et al., OSDI 2014, push and pull: sent and received together). staleness: mean age in "
    "updates of the weights behind a gradient."
)


def server_table(trials: Sequence[TrialFigures]) -> Table[Side]:
    """Memory, waiting and traffic, a row for each side."""
    lines = lines_of(trials, lambda trial: trial.sides)
    rows = figures_of(lines)
    held, moved = byte_unit(side.peak_bytes for side in rows), byte_unit(side.formula_bytes for side in rows)
    seconds = time_unit(side.step_s for side in rows)
    columns: list[Column[Side]] = [
        Column("side", lambda side: side.role, narrow="side", is_text=True),
        Column("ranks", lambda side: show_whole(side.num_ranks)),
        unit_column("peak", held, lambda side: side.peak_bytes, narrow=held.name),
        *states_columns(held, lambda side: side.states),
        unit_column("step", seconds, lambda side: side.step_s, narrow=f"step {seconds.name}"),
        unit_column("waiting", seconds, lambda side: side.wait_s, wide="waiting"),
        Column("waiting", lambda side: show_percent(side.wait_fraction), "%", narrow="wait %"),
        unit_column("sent", moved, lambda side: side.sent_bytes, narrow=f"sent {moved.name}"),
        unit_column("received", moved, lambda side: side.received_bytes, "received", "recv"),
        unit_column("by formula", moved, lambda side: side.formula_bytes, "by formula", "formula"),
        Column("staleness", lambda side: show_number(side.mean_staleness), narrow="stale"),
    ]
    below = [
        f"{line.trial.label}: gradients by staleness in updates: {text}"
        for line in lines
        if (text := line.figures.staleness_text) is not None
    ]
    return Table(TITLE, HOW_TO_READ, columns, lines, below)
