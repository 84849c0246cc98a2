"""`zerobench validate`: run a sweep measured and predicted, or read an earlier run, and show the prediction errors.

Evidence is an ordinary axis, so this is `zerobench run` with that axis set and another report at the end. Its run is an
ordinary one: `zerobench show` has its tables, `errors.csv` every cell, `--run` prints the report again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from zerobench.app.search import validate as library
from zerobench.app.terminal.answer import Answer
from zerobench.app.terminal.requests import RunRequest, ValidateRequest
from zerobench.app.terminal.run import start
from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.trial.trial import Evidence
from zerobench.records.folder import check_writable, write_whole
from zerobench.records.store import find_run
from zerobench.records.trials import refuse_impossible_values
from zerobench.report.documents.markdown import document
from zerobench.report.documents.terminal import print_parts

PREDICTING: list[Evidence] = [world for world in Evidence if world is not Evidence.MEASURED]
"""Kinds of prediction that can be compared with a measurement."""


def validate(request: ValidateRequest) -> Answer:
    """Run the sweep, or read an earlier run, and show its prediction errors.

    Exit status 0, 1 if a trial failed, 130 if the run was interrupted.

    Raises UserError for a mistake in the request, a run without comparable trials, or a torn record.
    """
    sets = _sets(request)
    if request.markdown is not None:
        check_writable("--markdown", request.markdown)
    if request.run is not None:
        path = find_run(request.run, request.reports)
        return _report(path, request)
    result = start(RunRequest(request.sweep, sets, request.only, reports=request.reports))
    path = result.folder.path
    stopped = Answer(lambda: {"run": str(path)}, exit_code=result.exit_code)
    return stopped if result.interrupted else _report(path, request)


def _sets(request: ValidateRequest) -> list[str]:
    """`--set` options plus the evidence axis; none for an earlier run."""
    if request.run is not None:
        given = {"SWEEP": request.sweep, "--set": request.sets, "--only": request.only, "--worlds": request.worlds}
        for name, value in given.items():
            if value:
                raise UserError(f"--run: {request.run}: an earlier run is read as it is; drop {name}")
        return []
    if request.sweep is None:
        raise UserError("SWEEP is missing: a sweep file or a shipped one; or an earlier run, with --run RUN")
    for text in request.sets or ():
        if text.partition("=")[0].strip() == "evidence":
            raise UserError(f"--set: {text!r}: validate sets the axis evidence itself; choose worlds with --worlds")
    worlds = [Evidence.MEASURED, *_worlds(request.worlds)]
    return [*(request.sets or ()), f"evidence={','.join(worlds)}"]


def _worlds(written: str | None) -> list[Evidence]:
    """Predictions that `--worlds` names; without it all that need no emulator."""
    if written is None:
        return [world for world in PREDICTING if world is not Evidence.EMULATED]
    names = list(dict.fromkeys(part.strip() for part in written.split(",") if part.strip()))
    for name in names:
        if name not in PREDICTING:
            raise unknown_choice("--worlds", name, PREDICTING)
    if not names:
        raise UserError(f"--worlds: {written!r} no world given; choices: {', '.join(PREDICTING)}")
    return [Evidence(name) for name in names]


def _report(path: Path, request: ValidateRequest) -> Answer:
    """Report the errors of the run at `path`; writes its tables and the Markdown file."""
    from zerobench.report.export.tidy_tables import write_tables  # noqa: PLC0415 -- pandas, which a refused request need not pay for

    validation = library.validate(path)
    if request.run is not None and not validation.num_pairs:
        raise UserError(f"--run: {request.run}: it has no trial both measured (or solo) and predicted")
    with refuse_impossible_values(validation.run.folder.trials):
        write_tables(validation.run)
    if request.markdown is not None:
        title = f"Predicted against measured: {validation.run.run_id}"
        write_whole(request.markdown, document(title, validation.parts, level=1))

    def show() -> None:
        print_parts([*(validation.parts if request.details else validation.parts[:1]), validation.answer])
        typer.echo(f"Run: {path}{'' if request.details else '; --details for phases and trials'}")

    return Answer(lambda: _document(validation), show, 1 if validation.has_failed else 0)


def _document(validation: library.Validation) -> dict[str, Any]:
    from zerobench.report.export.frames_document import json_errors  # noqa: PLC0415 -- as above
    from zerobench.report.figures.run.runs import run_figures  # noqa: PLC0415 -- as above

    rows = json_errors(run_figures([validation.run]), depth=0)
    return {
        "run": str(validation.run.folder.path),
        "predictions": validation.num_pairs,
        "has_failed": validation.has_failed,
        "errors": [json.loads(row) for row in rows],
    }
