"""Trials with a parameter server: the server's side apart from the workers'."""

from collections.abc import Sequence

from zerobench.report.column_units import byte_unit, show_number, show_percent, show_whole, time_unit
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.server import Side
from zerobench.report.tables.model import Column, Table, figures_of, in_unit, lines_of
from zerobench.report.tables.model_states import states_columns

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
    columns = [
        Column[Side]("side", lambda side: side.role, narrow="side", is_text=True),
        Column[Side]("ranks", lambda side: show_whole(side.num_ranks)),
        Column[Side]("peak", in_unit(held, lambda side: side.peak_bytes), held.name, narrow=held.name),
        *states_columns(held, lambda side: side.states),
        Column[Side]("step", in_unit(seconds, lambda side: side.step_s), seconds.name, narrow=f"step {seconds.name}"),
        Column[Side]("waiting", in_unit(seconds, lambda side: side.wait_s), seconds.name, wide="waiting"),
        Column[Side]("waiting", lambda side: show_percent(side.wait_fraction), "%", narrow="wait %"),
        Column[Side]("sent", in_unit(moved, lambda side: side.sent_bytes), moved.name, narrow=f"sent {moved.name}"),
        Column[Side]("received", in_unit(moved, lambda side: side.received_bytes), moved.name, "received", "recv"),
        Column[Side](
            "by formula", in_unit(moved, lambda side: side.formula_bytes), moved.name, "by formula", "formula"
        ),
        Column[Side]("staleness", lambda side: show_number(side.mean_staleness), narrow="stale"),
    ]
    below = [
        f"{line.trial.label}: gradients by staleness in updates: {text}"
        for line in lines
        if (text := line.figures.staleness_text) is not None
    ]
    return Table(TITLE, HOW_TO_READ, columns, lines, below)
