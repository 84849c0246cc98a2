"""The page's section of ways to train beside one process: the table and the claims, each with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerobench.report.compared.claim import Claim, Verdict
from zerobench.report.compared.claims import claims
from zerobench.report.compared.columns import HOW_TO_READ, TITLE, WHERE_FROM, columns
from zerobench.report.compared.rows import Compared, is_comparison
from zerobench.report.render.grid import Column, Grid, grid
from zerobench.report.render.visible import visible


@dataclass(frozen=True)
class ComparedSection:
    """What the template writes."""

    title: str
    words: tuple[str, ...]
    rows: Grid
    claims: Grid


def compared_section(rows: Sequence[Compared]) -> ComparedSection | None:
    """None without a single process, or with nothing but ZeRO's stages beside it."""
    if not is_comparison(rows):
        return None
    return ComparedSection(TITLE, (visible(HOW_TO_READ), visible(WHERE_FROM)), _rows(rows), _claims(rows))


def _rows(rows: Sequence[Compared]) -> Grid:
    shown = [
        Column[Compared](header, column.cell, is_number=not column.is_text)
        for column in columns(rows)
        if (header := column.header(wide=True)) is not None
    ]
    named = Column[Compared]("trial", _name, is_number=False)
    return grid("Each measured trial beside the single process.", [named, *shown], rows, _kind)


def _name(row: Compared) -> str:
    return f"{row.label}: server" if row.figures.is_server else row.label


def _kind(row: Compared) -> str:
    return "" if row.is_believed else "doubted"


def _claims(rows: Sequence[Compared]) -> Grid:
    shown = [
        Column[Claim]("claim", lambda claim: claim.text, is_number=False),
        Column[Claim]("is", lambda claim: claim.verdict.value, is_number=False),
        Column[Claim]("measured", lambda claim: claim.measured, is_number=False),
    ]
    return grid("What is claimed, and what this run says.", shown, claims(rows), _unjudged)


def _unjudged(claim: Claim) -> str:
    return "skipped" if claim.verdict is Verdict.UNJUDGED else ""
