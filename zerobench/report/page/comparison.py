"""The page of two runs side by side: the verdict, their memory as drawings, then the tables of the terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerobench.report.charts.two_runs import figures
from zerobench.report.compare.comparison import Comparison
from zerobench.report.compare.gate import Verdict
from zerobench.report.compare.headline import headline
from zerobench.report.page.environment import environment_grids
from zerobench.report.page.sheet import drawn, sheet_pieces
from zerobench.report.render.grid import Grid
from zerobench.report.render.html import listing_grid
from zerobench.report.render.visible import visible
from zerobench.report.tables.part import Listing, Part
from zerobench.report.tables.two_runs import TITLE, document_parts


@dataclass(frozen=True)
class Section:
    """A part as the template takes it."""

    key: str
    title: str
    caption: str
    grid: Grid | None
    points: Sequence[str]
    warnings: Sequence[str]


def comparison_pieces(comparison: Comparison, verdicts: Sequence[Verdict]) -> Iterable[str]:
    """The page as one HTML document that needs nothing else, a piece at a time."""
    return sheet_pieces("comparison.html.j2", _page(comparison, verdicts))


def _page(comparison: Comparison, verdicts: Sequence[Verdict]) -> Mapping[str, Any]:
    runs = (comparison.base.run, comparison.new.run)
    return {
        "kind": "comparison",
        "title": TITLE,
        "headline": [visible(sentence) for sentence in headline(comparison, verdicts)],
        "failed": not all(verdict.passed for verdict in verdicts),
        "figures": list(drawn(figures(comparison))),
        "sections": list(_sections(document_parts(comparison, verdicts))),
        "environment": environment_grids(
            {f"{side}: {run.run_id}": run.environment for side, run in zip(("BASE", "NEW"), runs, strict=True)}
        ),
    }


def _sections(parts: Iterable[Part]) -> Iterator[Section]:
    for index, part in enumerate(parts, start=1):
        caption = visible(part.caption)
        listing = part.table if isinstance(part.table, Listing) else None
        yield Section(
            f"part-{index}",
            visible(part.title),
            caption,
            None if listing is None else listing_grid(caption, listing),
            [visible(line) for line in part.points],
            [visible(line) for line in part.warnings],
        )
