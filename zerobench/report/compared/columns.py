"""The columns of the table, the same cells in the terminal, the page and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from zerobench.report.column_units import MISSING, byte_unit, show_number, show_percent, show_whole, time_unit
from zerobench.report.compared.rows import Compared
from zerobench.report.terminal.layout import Column

TITLE = "Distributed training compared"

HOW_TO_READ = (
    "Against the single process with the same global batch. speed-up: its step over the trial's; eff: efficiency, that "
    "over all ranks, servers too. sent: by a rank in a step; form: by the papers' closed form. states: of a rank; "
    "saved: against ddp. sync: share of a step in which a rank waits or communicates and computes nothing."
)

WHERE_FROM = (
    "losses: exact strategies agree with the single process, others differ by design; loss: the largest difference; "
    "norm: the largest distance of gradients' norms before clipping, a fraction. +-: half of the timed steps lie "
    "within it. Bytes: of the rank that sends most, in a memory step; closed forms: "
    "Rajbhandari et al. 2020, section 7 (ddp, ZeRO, FSDP), Li et al. 2014 (parameter server), Shoeybi et al. 2019 "
    "(tensor), Narayanan et al. 2021 (pipeline). sync: of the rank where it is largest, in a step under torch's "
    "profiler that is not timed; in brackets: the waiting that the strategy itself timed, where no library tells. "
    "stale: staleness, mean updates that weights were behind."
)


def columns(rows: Sequence[Compared], *, full: bool = True) -> list[Column[Compared]]:
    """The columns for `rows`, their units chosen once for all of them; without `full` those for a terminal.

    A page and Markdown have tokens/s in a table of their own, and room for the norms of gradients and for the
    share in which communication is under way.
    """
    seconds = time_unit(row.figures.step_s for row in rows)
    moved = byte_unit(size for row in rows for size in (row.figures.sent_bytes, row.figures.formula_sent_bytes))
    held = byte_unit(size for row in rows for size in (row.figures.states_bytes, row.figures.peak_bytes))
    tokens = Column[Compared]("tokens/s", None, lambda row: show_whole(row.figures.tokens_per_s))
    norm = Column[Compared]("norm", None, _norm_difference)
    in_flight = Column[Compared]("in flight, %", None, lambda row: show_percent(row.figures.in_flight_fraction, 0))
    return [
        Column[Compared]("losses", None, lambda row: row.verdict, is_text=True),
        Column[Compared]("loss", "loss", _difference),
        *([norm] if full else []),
        Column[Compared](f"step, {seconds.name}", f"{seconds.name}", lambda row: seconds.show(row.figures.step_s)),
        Column[Compared]("+-", None, lambda row: seconds.show(row.figures.spread_s)),
        *([] if full else [tokens]),
        Column[Compared]("speed-up", "speed", lambda row: _times(row.speed_up)),
        Column[Compared]("eff %", "eff %", lambda row: show_percent(row.efficiency, 0)),
        *_weak(rows),
        Column[Compared](f"sent, {moved.name}", f"sent {moved.name}", lambda row: moved.show(row.figures.sent_bytes)),
        Column[Compared]("form", "form", lambda row: moved.show(row.figures.formula_sent_bytes)),
        Column[Compared](
            f"states, {held.name}", f"states {held.name}", lambda row: held.show(row.figures.states_bytes)
        ),
        Column[Compared]("saved, %", "saved", lambda row: _saved(row.saved_fraction)),
        Column[Compared](f"peak, {held.name}", None, lambda row: held.show(row.figures.peak_bytes)),
        *([in_flight] if full else []),
        Column[Compared]("sync, %", "sync %", _sync),
        Column[Compared]("stale", None, lambda row: show_number(row.figures.staleness)),
    ]


def _weak(rows: Sequence[Compared]) -> list[Column[Compared]]:
    """Only where the run has a single process with one rank's share."""
    if all(row.weak_efficiency is None for row in rows):
        return []
    return [Column[Compared]("weak, %", None, lambda row: show_percent(row.weak_efficiency, 0))]


def _difference(row: Compared) -> str:
    if row.figures.is_server or row.parity is None:
        return MISSING
    return _order(row.parity.difference)


def _norm_difference(row: Compared) -> str:
    far = None if row.figures.is_server or row.parity is None else row.parity.norm_difference
    return MISSING if far is None else _order(far)


def _order(difference: float) -> str:
    return f"{difference:.0e}" if difference else "0"


def _times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _saved(fraction: float | None) -> str:
    return MISSING if fraction is None else show_percent(fraction, 0).replace("-0", "0")


def _sync(row: Compared) -> str:
    shown = show_percent(row.figures.sync_fraction, 0)
    return f"({shown})" if row.figures.exposed_fraction is None and row.figures.sync_fraction is not None else shown
