"""Terminal table of trials with a parameter server: the server's side apart from the workers'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.text import Text

from zerobench.report.column_units import MISSING, Unit, byte_unit, plain, show_number, show_percent, time_unit
from zerobench.report.server import Side, sides
from zerobench.report.terminal.layout import Column, Section, Shown, table

HOW_TO_READ = (
    "Of each side the rank with the largest peak; bytes of one rank in a steady step, beside 2 x weights a worker "
    "(Li et al., OSDI 2014, push and pull: sent and received together). staleness: mean updates that the weights "
    "of a gradient were behind."
)


def server_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """Memory, waiting and traffic of both sides, for the trials that have two."""
    rows = [(one, side) for one in shown for side in sides(one.trial)]
    if rows:
        yield _sides(rows, width)


def _states(unit: Unit, name: str) -> Callable[[Side], str]:
    return lambda side: MISSING if side.states is None else unit.show(getattr(side.states, name))


def _sides(rows: list[tuple[Shown, Side]], width: int) -> Section:
    held = byte_unit(side.peak_bytes for _, side in rows)
    moved = byte_unit(side.formula_bytes for _, side in rows)
    seconds = time_unit(side.step_s for _, side in rows if side.step_s is not None)
    columns = [
        Column[Side]("side", "side", lambda side: side.role, is_text=True),
        Column[Side]("ranks", None, lambda side: str(side.num_ranks)),
        Column[Side](f"peak, {held.name}", held.name, lambda side: held.show(side.peak_bytes)),
        Column("param", None, _states(held, "parameters_bytes")),
        Column("grad", None, _states(held, "gradients_bytes")),
        Column("optim", None, _states(held, "optimizer_bytes")),
        Column[Side](f"step, {seconds.name}", f"step {seconds.name}", lambda side: seconds.show(side.step_s)),
        Column[Side]("waiting", None, lambda side: seconds.show(side.wait_s)),
        Column[Side]("waiting, %", "wait %", lambda side: show_percent(side.wait_fraction)),
        Column[Side](f"sent, {moved.name}", f"sent {moved.name}", lambda side: moved.show(side.sent_bytes)),
        Column[Side]("received", "recv", lambda side: moved.show(side.received_bytes)),
        Column[Side]("by formula", "formula", lambda side: moved.show(side.formula_bytes)),
        Column[Side]("staleness", "stale", lambda side: show_number(side.mean_staleness)),
    ]
    return Section(
        "Parameter server, side by side",
        HOW_TO_READ,
        table(columns, rows, width),
        [Text(plain(line), style="dim") for one, side in rows if (line := _staleness(one, side))],
    )


def _staleness(shown: Shown, side: Side) -> str | None:
    text = side.staleness_text
    return None if text is None else f"{shown.label}: gradients by staleness in updates: {text}"
