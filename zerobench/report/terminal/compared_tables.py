"""Terminal table of ways of distributed training beside one process, and what is claimed of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from zerobench.report.column_units import plain
from zerobench.report.compared.claim import Claim, Verdict
from zerobench.report.compared.claims import claims
from zerobench.report.compared.columns import HOW_TO_READ, TITLE, WHERE_FROM, columns
from zerobench.report.compared.figures import figures_of
from zerobench.report.compared.rows import Compared, compare, is_comparison
from zerobench.report.terminal.layout import WIDE, Section, Shown, table

_STYLES = {Verdict.HOLDS: "green", Verdict.FAILS: "yellow"}


def compared_sections(shown: Sequence[Shown], width: int) -> Iterator[Section]:
    """The comparison and the claims; nothing without a single process, or with nothing but ZeRO's stages beside it."""
    rows = compared_rows(shown)
    if is_comparison(rows):
        yield _table(shown, rows, width)
        yield Section(
            "What is claimed of distributed training, and what this run says",
            "",
            lines=_claim_lines(claims(rows)),
        )


def compared_rows(shown: Sequence[Shown]) -> list[Compared]:
    """The rows of the trials that are shown."""
    key = {(one.trial.record.run_id, one.trial.record.trial_id): one for one in shown}
    return compare(
        [figures for one in shown for figures in figures_of(one.trial)],
        {name: one.label for name, one in key.items()},
        {name: one.parity for name, one in key.items()},
    )


def _table(shown: Sequence[Shown], rows: Sequence[Compared], width: int) -> Section:
    by_key = {(one.trial.record.run_id, one.trial.record.trial_id): one for one in shown}
    lines = [(_named(by_key[row.figures.run_id, row.figures.trial_id], row), row) for row in rows]
    below = [Text(WHERE_FROM, style="dim")] if width >= WIDE else []
    return Section(TITLE, HOW_TO_READ, table(columns(rows, full=False), lines, width), below)


def _named(one: Shown, row: Compared) -> Shown:
    """A server's row says whose it is."""
    return Shown(one.trial, f"{one.label}: server", one.parity) if row.figures.is_server else one


def _claim_lines(found: Sequence[Claim]) -> list[Text]:
    """Those that are judged, then in one line what the run is silent about."""
    silent = [plain(claim.text) for claim in found if claim.verdict is Verdict.UNJUDGED]
    said = [_line(claim) for claim in found if claim.verdict is not Verdict.UNJUDGED]
    return [*said, *([Text(f"Cannot be judged by this run: {'; '.join(silent)}.", style="dim")] if silent else [])]


def _line(claim: Claim) -> Text:
    return Text.assemble(
        Text(f"- {plain(claim.text)}: "),
        Text(claim.verdict.value, style=_STYLES[claim.verdict]),
        Text(f": {plain(claim.measured)}"),
    )
