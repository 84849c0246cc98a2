"""`zerobench report`: read the runs once and write each requested format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zerobench.common.collection import no_collection, return_memory
from zerobench.common.errors import UserError
from zerobench.records.folder import write_pieces, writing
from zerobench.records.store import Run, find_run, load_run
from zerobench.report.figures.run.runs import RunFigures, run_figures

if TYPE_CHECKING:
    from zerobench.report.export.run_frames import RunFrames

STANDARD_OUTPUT = Path("-")
"""`--out -`."""


@dataclass(frozen=True)
class ReportRequest:
    """Options of `zerobench report`."""

    runs: Sequence[str]
    """Run names; empty for the newest run."""
    formats: Sequence[str]
    """One or more of `html`, `markdown`, `csv`, `json`."""
    out: Path | None
    reports: Path


def write_reports(request: ReportRequest) -> Iterator[str]:
    """Write each requested format and yield its path, or its text for `--out -`.

    Raises UserError for a mistake in the request, no such run, a torn record, or a path that cannot be written.
    """
    _check(request)
    makers = {name: _maker(name) for name in request.formats}
    with return_memory(), no_collection():
        held = [run_figures(_runs(request))]
    if not held[0].figures:
        raise UserError(f"RUN: {', '.join(run.run_id for run in held[0].runs)}: no trial has ended yet")
    for name in request.formats:
        path = request.out or _default_path(name, held[0])
        with return_memory():  # the last document lets go of the figures before it is written: a page is drawn then
            write = makers[name](held.pop() if name == request.formats[-1] else held[0])
        yield write(path)


def _check(request: ReportRequest) -> None:
    if request.out is None:
        return
    if len(request.formats) > 1:
        shown = ", ".join(f"--{name}" for name in request.formats)
        raise UserError(
            f"--out: {request.out}: one file takes one format, not {shown}; drop --out or all formats but one"
        )
    if request.out == STANDARD_OUTPUT and request.formats == ["csv"]:
        raise UserError("--out: '-': --csv writes several tables; give a folder")


def _runs(request: ReportRequest) -> list[Run]:
    """Load the named runs, each once."""
    names: Sequence[str | None] = request.runs or [None]
    paths = [find_run(name, request.reports) for name in names]
    known = {path.resolve(): path if path.name else path.resolve() for path in paths}
    runs = [load_run(path) for path in known.values()]
    twice = [name for name, count in Counter(run.run_id for run in runs).items() if count > 1]
    if twice:
        raise UserError(f"RUN: {', '.join(twice)}: several folders hold this run; choose one")
    return runs


def _default_path(name: str, runs: RunFigures) -> Path:
    """Default path: next to the tables of the (last) run."""
    folder = runs.runs[-1].folder.path
    of = "" if len(runs.runs) == 1 else f"_of_{len(runs.runs)}_runs"
    # Markdown is meant to be kept, and goes next to the run folders; under the run's own name if another run of that
    # day has the usual one.
    if name == "markdown":
        from zerobench.report.documents.report import kept_name  # noqa: PLC0415 -- only this format needs it

        path = folder.parent / kept_name(runs)
        if path.exists() and not all(run.run_id in path.read_text("utf-8", "replace") for run in runs.runs):
            return folder.parent / f"{folder.name}{of}.md"
        return path
    return folder / (f"report{of}_csv" if name == "csv" else f"report{of}.{name}")


Writer = Callable[[Path], str]
"""Writes a document to a path; returns the path, or the text itself for `-`."""


def _maker(name: str) -> Callable[[RunFigures], Writer]:
    """Return the builder of a format's document."""
    # Its imports happen before figures are in memory: modules allocated among them would keep most of that memory
    # from being returned to the system.
    if name == "csv":
        from zerobench.report.export.run_frames import frames_of  # noqa: PLC0415 -- only this format needs it

        return lambda runs: partial(_write_csv, frames_of(runs))
    pieces = _pieces_of(name)
    return lambda runs: partial(_write_text, pieces(runs))


def _write_csv(frames: RunFrames, path: Path) -> str:
    from zerobench.report.export.joined_tables import write_csv  # noqa: PLC0415 -- as above

    with writing(f"--out: {path}"):
        write_csv(frames, path)
    return str(path)


def _write_text(pieces: Iterable[str], path: Path) -> str:
    if path == STANDARD_OUTPUT:
        return "".join(pieces)
    with writing(f"--out: {path}"):
        write_pieces(path, pieces)
    return str(path)


def _pieces_of(name: str) -> Callable[[RunFigures], Iterable[str]]:
    """Return the builder of a text document, in one or more pieces."""
    if name == "json":
        from zerobench.report.export.frames_document import json_pieces  # noqa: PLC0415 -- as above

        return json_pieces
    if name == "html":
        from zerobench.report.export.libraries import require_page  # noqa: PLC0415 -- as above

        require_page()
        from zerobench.report.documents.page import page_pieces  # noqa: PLC0415 -- as above

        return page_pieces
    from zerobench.report.documents.report import markdown_report  # noqa: PLC0415 -- as above

    return lambda runs: [markdown_report(runs)]
