"""What `zerobench compare` does: two runs side by side in the terminal, in a file for a pull request, and as a gate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerobench.cli.answer import Answer
from zerobench.errors import UserError
from zerobench.folder import write_whole
from zerobench.report.compare.comparison import compare
from zerobench.report.compare.document import comparison_document
from zerobench.report.compare.gate import judge, parse_limits, refusal
from zerobench.report.render.markdown import document
from zerobench.report.render.terminal import print_parts
from zerobench.report.tables.part import Part
from zerobench.report.tables.two_runs import TITLE, comparison_parts, gate_part
from zerobench.store import find_run, load_run


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    base: str
    new: str
    fail_on: str | None
    markdown: Path | None
    reports: Path


def compare_runs(request: Request) -> Answer:
    """The two runs side by side, judged; the exit status is 1 where a limit is exceeded.

    Raises UserError: a mistake in the request, no trial in both runs, a torn record, or a gate that can never fire
    (after the tables, which are true all the same).
    """
    limits = [] if request.fail_on is None else parse_limits(request.fail_on)
    _check_writable(request.markdown)
    paths = [find_run(name, request.reports) for name in (request.base, request.new)]
    comparison = compare(*(load_run(path) for path in paths))
    if not comparison.same:
        raise UserError(
            f"BASE, NEW: {request.base} and {request.new} have no trial in common; run the same sweep for both"
        )
    verdicts = judge(comparison, limits)
    parts = list(comparison_parts(comparison))
    gate = [gate_part(verdicts)] if verdicts else []
    _write(request.markdown, [*gate, *parts])
    refused = refusal(verdicts)
    if refused is not None:
        print_parts([*parts, *gate])
        raise UserError(refused)
    passed = all(verdict.passed for verdict in verdicts)
    return Answer(
        lambda: comparison_document(comparison, verdicts), lambda: print_parts([*parts, *gate]), 0 if passed else 1
    )


def _write(markdown: Path | None, parts: list[Part]) -> None:
    """The gate, which is last in the terminal, where the eye is, comes first in a file."""
    if markdown is not None:
        try:
            write_whole(markdown, document(TITLE, parts, level=2))
        except OSError as error:
            raise UserError(f"--markdown: {markdown}: cannot be written: {error.strerror or error}") from None


def _check_writable(path: Path | None) -> None:
    """A comparison must not end in a file that cannot be written."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UserError(f"--markdown: {path}: not a file in a folder that is there")
