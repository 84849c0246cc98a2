"""The page of two runs side by side: the verdict, their memory as drawings, then the tables of the terminal."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from zerobench.report.charts.two_runs import figures
from zerobench.report.documents.page.environment import environment_grids
from zerobench.report.documents.page.sheet import drawn, sheet_pieces
from zerobench.report.figures.compare.comparison import Comparison
from zerobench.report.tables.gate import Verdict, headline
from zerobench.report.tables.grid import listing_grid
from zerobench.report.tables.part import Part
from zerobench.report.tables.two_runs import SUMMARY, TITLE, document_parts


def comparison_pieces(comparison: Comparison, verdicts: Sequence[Verdict]) -> Iterable[str]:
    """The page as one HTML document that needs nothing else, a piece at a time."""
    return sheet_pieces("comparison.html.j2", _page(comparison, verdicts))


def _page(comparison: Comparison, verdicts: Sequence[Verdict]) -> Mapping[str, Any]:
    runs = (comparison.base.run, comparison.new.run)
    parts = document_parts(comparison, verdicts)  # the page opens with the summary as its headline
    return {
        "kind": "comparison",
        "title": TITLE,
        "headline": headline(comparison, verdicts),
        "failed": not all(verdict.passed for verdict in verdicts),
        "figures": list(drawn(figures(comparison))),
        "sections": list(map(_section, count(1), (part for part in parts if part.title != SUMMARY))),
        "environment": environment_grids(
            {f"{side}: {run.run_id}": run.environment for side, run in zip(("BASE", "NEW"), runs, strict=True)}
        ),
    }


def _section(index: int, part: Part) -> Mapping[str, Any]:
    """A part as the template takes it."""
    grid = listing_grid(part.caption, part.table) if part.table else None
    return {"key": f"part-{index}", "title": part.title, "grid": grid, "part": part}
