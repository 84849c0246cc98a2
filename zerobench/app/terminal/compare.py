"""`zerobench compare`: two runs side by side in the terminal, in a file for a pull request, and as a CI gate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from zerobench.app.terminal.answer import Answer
from zerobench.app.terminal.requests import CompareRequest
from zerobench.common.errors import UserError
from zerobench.records.baselines import find_baseline
from zerobench.records.folder import check_writable, write_pieces, write_whole, writing
from zerobench.records.store import find_run, latest_run_like, load_run
from zerobench.report.documents.markdown import document
from zerobench.report.documents.terminal import print_parts
from zerobench.report.export.compare_document import comparison_document
from zerobench.report.export.libraries import require_page
from zerobench.report.figures.compare.comparison import Comparison, compare
from zerobench.report.tables.gate import Verdict, judge, parse_limits, refusal
from zerobench.report.tables.model import Table
from zerobench.report.tables.part import Part
from zerobench.report.tables.two_runs import TITLE, answer_part, comparison_parts, document_parts


def compare_runs(request: CompareRequest) -> Answer:
    """Compare two runs and judge the limits; exit status 1 if one is exceeded.

    Raises UserError for a mistake in the request, no common trial, a torn record, or a limit that can never fail
    (reported after the tables, which are valid all the same).
    """
    limits = [] if request.fail_on is None else parse_limits(request.fail_on)
    files = {
        option: path
        for option, path in (("--markdown", request.markdown), ("--html", request.html))
        if path is not None
    }
    for option, path in files.items():
        check_writable(option, path)
        if option == "--html":
            require_page()
    paths = _paths(request)
    comparison = compare(*(load_run(path) for path in paths))
    if not comparison.same:
        raise UserError(
            f"BASE, NEW: {paths[0].name} and {paths[1].name} have no common trial; run the same sweep for "
            f"both, or compare two trials: `zerobench explain {paths[0].name}:TRIAL {paths[1].name}:TRIAL`"
        )
    verdicts = judge(comparison, limits)
    for option, path in files.items():
        _write(option, path, comparison, verdicts)
    answer, tables = answer_part(comparison, verdicts), comparison_parts(comparison, details=request.details)
    # A screen keeps the end of the output in view, a file its beginning.
    parts: list[Part | Table[Any]] = [*tables, answer] if sys.stdout.isatty() else [answer, *tables]
    refused = refusal(verdicts)
    if refused is not None:
        print_parts(parts)
        raise UserError(refused)
    passed = all(verdict.passed for verdict in verdicts)

    def show() -> None:
        print_parts(parts)
        if not request.details:
            typer.echo("--details for categories and causes")

    return Answer(lambda: comparison_document(comparison, verdicts), show, 0 if passed else 1)


def _paths(request: CompareRequest) -> tuple[Path, Path]:
    """Return the folders of the base run and the new run."""
    if request.against is not None:
        if request.new is not None:
            raise UserError(f"--against: {request.against} replaces BASE; give NEW only")
        baseline = find_baseline(request.against, request.reports)
        if request.base is not None:
            return baseline, find_run(request.base, request.reports)
        return baseline, latest_run_like(load_run(baseline), request.reports)
    if request.base is None or request.new is None:
        raise UserError("NEW is missing: zerobench compare BASE NEW, or compare NEW --against NAME")
    return find_run(request.base, request.reports), find_run(request.new, request.reports)


def _write(option: str, path: Path, comparison: Comparison, verdicts: Sequence[Verdict]) -> None:
    with writing(f"{option}: {path}"):
        if option == "--html":
            from zerobench.report.documents.page.comparison import comparison_pieces  # noqa: PLC0415 -- only it needs to draw

            write_pieces(path, comparison_pieces(comparison, verdicts))
        else:
            write_whole(path, document(TITLE, document_parts(comparison, verdicts), level=2))
