"""Ways of distributed training beside one process that trains the same global batch, and what is claimed of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zerobench.report.figures.parity import Parity
from zerobench.report.figures.strategies.claim import Claim, Verdict
from zerobench.report.figures.strategies.claims import claims
from zerobench.report.figures.strategies.rows import ComparedSide, is_comparison
from zerobench.report.tables.model import Column, Line, Table, of_part, unit_column
from zerobench.report.tables.part import Listing, Part, VerdictSentence
from zerobench.report.words.column_units import MISSING, byte_unit, show_number, show_percent, show_whole, time_unit

TITLE = "Distributed training compared"
CLAIMS_TITLE = "Claims about distributed training, checked on this run"

HOW_TO_READ = (
    "Against the single process with the same global batch. speed-up: its step time over the trial's; "
    "eff: efficiency, speed-up per rank, servers included. sent: per rank and step; form: by the papers' "
    "closed form. states: per rank; saved: against ddp. sync: exposed communication and waiting, share "
    "of a step."
)

WHERE_FROM = (
    "losses: exact strategies agree with the single process, others differ by design; loss: largest "
    "difference; norm: largest relative difference of gradient norms before clipping. +-: half of the "
    "timed steps are within it. Bytes: of the rank that sends most, in a memory step; closed forms: "
    "Rajbhandari et al. 2020, section 7 (ddp, ZeRO, FSDP), Li et al. 2014 (parameter server), Shoeybi et "
    "al. 2019 (tensor), Narayanan et al. 2021 (pipeline). sync: largest rank, in an untimed step under "
    "torch's profiler; in brackets: waiting timed by the strategy itself. stale: mean staleness of "
    "weights in updates."
)


def strategies_table(rows: Sequence[ComparedSide]) -> Table[ComparedSide]:
    """A row for each side of a trial; none without a single process, or with nothing but ZeRO's stages beside it."""
    lines = list(map(_line, rows)) if is_comparison(rows) else []
    return Table(TITLE, HOW_TO_READ, list(_columns(rows)), lines, more=WHERE_FROM)


def _line(row: ComparedSide) -> Line[ComparedSide]:
    """A server's row says whose it is."""
    name = row.trial.name
    return Line(replace(name, label=f"{name.label}: server") if row.figures.is_server else name, row)


def claims_listing(rows: Sequence[ComparedSide]) -> Listing[Claim]:
    """A row for each claim, where there is a comparison."""
    columns: list[Column[Claim]] = [
        Column("claim", lambda claim: claim.text, is_text=True),
        Column("is", lambda claim: claim.verdict.value, is_text=True),
        Column("measured", lambda claim: claim.measured, is_text=True),
    ]
    return Listing(
        columns,
        claims(rows) if is_comparison(rows) else [],
        lambda claim: "skipped" if claim.verdict is Verdict.UNJUDGED else "",
    )


def claims_part(rows: Sequence[ComparedSide]) -> Iterator[Part]:
    """The claims that are judged as sentences, then in one line what the run is silent about."""
    judgements = claims_listing(rows).rows
    silent = [claim.text for claim in judgements if claim.verdict is Verdict.UNJUDGED]
    sentences: list[str | VerdictSentence] = [
        VerdictSentence(f"- {claim.text}: ", claim.verdict.value, claim.verdict is Verdict.HOLDS, f": {claim.measured}")
        for claim in judgements
        if claim.verdict is not Verdict.UNJUDGED
    ]
    if judgements:
        more = [f"Not covered by this run: {'; '.join(silent)}."] if silent else []
        yield Part(CLAIMS_TITLE, text=sentences, quiet=more)


def _columns(rows: Sequence[ComparedSide]) -> Iterator[Column[ComparedSide]]:
    """Their units are chosen once for all rows; the column `weak` only with a single process of one rank's share."""
    seconds = time_unit(row.figures.step_s for row in rows)
    moved = byte_unit(size for row in rows for size in (row.figures.sent_bytes, row.figures.formula_sent_bytes))
    held = byte_unit(size for row in rows for size in (row.figures.states_bytes, row.figures.peak_bytes))
    yield Column("losses", lambda row: row.verdict, is_text=True)
    yield Column("loss", of_part(_parity, lambda parity: _order(parity.difference)), narrow="loss")
    yield Column("norm", of_part(_parity, lambda parity: _order(parity.norm_difference)), wide=None)
    yield unit_column("step", seconds, lambda row: row.figures.step_s, narrow=seconds.name)
    yield unit_column("+-", seconds, lambda row: row.figures.spread_s, wide="+-")
    yield Column("tokens/s", lambda row: show_whole(row.figures.tokens_per_s), is_for_files=False)
    yield Column("speed-up", lambda row: MISSING if row.speed_up is None else f"{row.speed_up:.2f}", narrow="speed")
    yield Column("eff", lambda row: show_percent(row.efficiency, 0), "%", wide="eff %", narrow="eff %")
    if any(row.weak_efficiency is not None for row in rows):
        yield Column("weak", lambda row: show_percent(row.weak_efficiency, 0), "%")
    yield unit_column("sent", moved, lambda row: row.figures.sent_bytes, narrow=f"sent {moved.name}")
    yield unit_column("form", moved, lambda row: row.figures.formula_sent_bytes, "form", "form")
    states = f"states {held.name}"
    yield unit_column("states", held, lambda row: row.figures.states_bytes, narrow=states)
    yield Column("saved", lambda row: show_percent(row.saved_fraction, 0).replace("-0", "0"), "%", narrow="saved")
    yield unit_column("peak", held, lambda row: row.figures.peak_bytes)
    yield Column("in flight", lambda row: show_percent(row.figures.in_flight_fraction, 0), "%", wide=None)
    yield Column("sync", _sync, "%", narrow="sync %")
    yield Column("stale", lambda row: show_number(row.figures.staleness))


def _parity(row: ComparedSide) -> Parity | None:
    """A server computes no loss."""
    return None if row.figures.is_server else row.parity


def _order(difference: float | None) -> str:
    if difference is None:
        return MISSING
    return f"{difference:.0e}" if difference else "0"


def _sync(row: ComparedSide) -> str:
    shown = show_percent(row.figures.sync_fraction, 0)
    return f"({shown})" if row.figures.exposed_fraction is None and row.figures.sync_fraction is not None else shown
