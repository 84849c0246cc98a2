"""What `zerobench report` does: reads the runs once, and writes each format that was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerobench.collection import no_collection
from zerobench.errors import UserError
from zerobench.folder import write_pieces
from zerobench.report.figures.runs import RunFigures, run_figures
from zerobench.report.memory_pool import given_back
from zerobench.store import Run, find_run, load_run

STANDARD_OUTPUT = Path("-")
"""`--out -`."""


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    runs: Sequence[str]
    """Empty: the newest one."""
    formats: Sequence[str]
    """Of `html`, `markdown`, `csv`, `json`; one at least."""
    out: Path | None
    reports: Path


def write_reports(request: Request) -> Iterator[str]:
    """Write what is asked for and yield the path of each, or its text where `--out -` wants it printed.

    Raises UserError: a mistake in the request, no such run, a torn record, or a path that cannot be written.
    """
    _check(request)
    with given_back(), no_collection():
        runs = _runs(request)
        figures = run_figures(runs)
    if not figures.figures:
        raise UserError(f"RUN: {', '.join(run.run_id for run in figures.runs)}: no trial has ended yet")
    for name in request.formats:
        if request.out == STANDARD_OUTPUT:
            yield "".join(_pieces(name, figures))
        else:
            path = request.out or _default_path(name, figures)
            _write(name, figures, path)
            yield str(path)


def _check(request: Request) -> None:
    if request.out is None:
        return
    if len(request.formats) > 1:
        shown = ", ".join(f"--{name}" for name in request.formats)
        raise UserError(
            f"--out: {request.out}: one file takes one format, not {shown}; drop --out or all formats but one"
        )
    if request.out == STANDARD_OUTPUT and request.formats == ["csv"]:
        raise UserError("--out: '-': --csv writes several tables; give a folder")


def _runs(request: Request) -> list[Run]:
    """The runs that are named, each once."""
    names: Sequence[str | None] = request.runs or [None]
    paths = [find_run(name, request.reports) for name in names]
    known = {path.resolve(): path if path.name else path.resolve() for path in paths}
    runs = [load_run(path) for path in known.values()]
    twice = [name for name, count in Counter(run.run_id for run in runs).items() if count > 1]
    if twice:
        raise UserError(f"RUN: {', '.join(twice)}: several folders hold this run; choose one")
    return runs


def _default_path(name: str, runs: RunFigures) -> Path:
    """Beside the tables of the run, or of the last of several; Markdown, which is made to be kept, beside the runs."""
    folder = runs.runs[-1].folder.path
    if name == "markdown":
        from zerobench.report.markdown.report import kept_name  # noqa: PLC0415 -- only this format needs it

        path = folder.parent / kept_name(runs)
        if path.exists() and not all(run.run_id in path.read_text("utf-8", "replace") for run in runs.runs):
            raise UserError(f"--out: {path} belongs to another run; choose another path")
        return path
    stem = "report" if len(runs.runs) == 1 else f"report_of_{len(runs.runs)}_runs"
    return folder / (f"{stem}_csv" if name == "csv" else f"{stem}.{name}")


def _write(name: str, runs: RunFigures, path: Path) -> None:
    try:
        if name == "csv":
            from zerobench.report.frames.joined_tables import write_csv  # noqa: PLC0415 -- as above
            from zerobench.report.frames.run_frames import frames_of  # noqa: PLC0415 -- as above

            write_csv(frames_of(runs), path)
        else:
            write_pieces(path, _pieces(name, runs))
    except OSError as error:
        raise UserError(f"--out: {path}: cannot be written: {error.strerror}") from None


def _pieces(name: str, runs: RunFigures) -> Iterable[str]:
    """The document of one format, in one piece or more; what only it needs is imported here."""
    if name == "json":
        from zerobench.report.frames.document import json_pieces  # noqa: PLC0415 -- as above

        return json_pieces(runs)
    if name == "html":
        from zerobench.report.exporters.libraries import require_page  # noqa: PLC0415 -- as above

        require_page()
        from zerobench.report.page import page_pieces  # noqa: PLC0415 -- as above

        return page_pieces(runs)
    from zerobench.report.markdown.report import markdown_report  # noqa: PLC0415 -- as above

    return [markdown_report(runs)]
