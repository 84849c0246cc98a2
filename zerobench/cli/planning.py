"""What `zerobench plan` does: has the plan predicted, prints it, and writes what is recommended."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import typer

from zerobench.cli.answer import Answer
from zerobench.cli.live import ANSWERS, prediction_view
from zerobench.cli.paths import shortest
from zerobench.cli.run import notes_of
from zerobench.errors import UserError
from zerobench.report.plan.document import plan_document
from zerobench.report.plan.rows import PlanRow
from zerobench.report.plan.view import plan_view
from zerobench.report.render.terminal import print_parts
from zerobench.report.tables.plan_frontier import FrontierRow, frontier_part
from zerobench.run.runner import RunResult
from zerobench.search.plan import Plan, Request, read_plan
from zerobench.search.predict import predict
from zerobench.search.predicted import frontier_rows, plan_frontiers
from zerobench.spec.cluster import read_tokens
from zerobench.spec.frontier_axes import FrontierAxis, frontier_axis
from zerobench.spec.trial import Offload, slug
from zerobench.store import STAMP, load_run


def plan(request: Request, *, details: bool = False) -> Answer:
    """Predict what is asked for; the exit status is 1 where nothing fits or a trial failed."""
    tokens = None if request.tokens is None else read_tokens("--tokens", request.tokens)
    asked = read_plan(request)
    if request.frontier is not None:
        return _frontier(asked, frontier_axis(request.frontier), request.reports)
    result = predict(asked.planned, asked.name, asked.document, request.reports, prediction_view())
    if result.interrupted:
        return Answer(lambda: {"run": str(result.folder.path)}, exit_code=result.exit_code)
    view = plan_view(result.folder.path, asked.cluster, tokens)
    best = view.best
    notes = [*([asked.world.note] if asked.world.note else []), *notes_of(asked.planned)]
    written = [] if request.write is None or best is None else _write(result, best, request.write)

    def show() -> None:
        print_parts([*(view.details if details or not view.answer else ()), *view.answer])
        for line in (*(f"note: {note}" for note in notes), *written):
            typer.echo(line)
        _next(result, best, request.write, details=details)

    def document() -> dict[str, Any]:
        return {**plan_document(result.folder.path, asked.cluster), "notes": notes}

    return Answer(document, show, 1 if best is None or set(result.statuses) - ANSWERS else 0)


def _next(result: RunResult, best: PlanRow | None, written: Path | None, *, details: bool) -> None:
    """Where the configuration lies, and what to do next."""
    run = shortest(result.folder.path)
    if best is not None and best.trial.spec.zero_stage is not None:
        config = written or run / "trials" / best.trial.spec.trial_id / "ds_config.json"
        typer.echo(f"Next: deepspeed train.py --deepspeed_config {config}")
    more = "" if details else "; --details for reasons, categories and bounds"
    typer.echo(f"Run: {run}{more}")


def _frontier(asked: Plan, axis: FrontierAxis, reports: Path) -> Answer:
    """What fits along `axis`, in a folder for the whole search; 1 where a prediction failed."""
    folder = reports / f"{slug(asked.name)}-frontier-{axis.name}_{time.strftime(STAMP)}"
    found = plan_frontiers(asked, axis, folder, prediction_view())
    rows = frontier_rows(asked, found)

    def show() -> None:
        print_parts([frontier_part(axis, rows, asked.cluster)])
        for name, reason in found.given_up.items():
            typer.echo(f"given up: {name}: {reason}")
        typer.echo(f"runs: {folder}")

    def document() -> dict[str, Any]:
        return {
            "runs": str(folder),
            "axis": axis.name,
            "frontier": [_edge(axis, row) for row in rows],
            "given_up": found.given_up,
        }

    return Answer(document, show, 1 if found.given_up else 0)


def _edge(axis: FrontierAxis, row: FrontierRow) -> dict[str, Any]:
    """Where fitting ends, in values of the axis."""
    edges = {"largest": row.frontier.largest, "too_large": row.frontier.too_large}
    return {
        "configuration": row.label,
        **{name: None if one is None else one.value * axis.unit for name, one in edges.items()},
        "needed_bytes": None if row.row is None else row.row.device.needed_bytes,
    }


def _write(result: RunResult, best: PlanRow, path: Path) -> list[str]:
    """Write the recommended trial's configuration, ready for DeepSpeed; lines that say so."""
    spec = best.trial.spec
    try:
        shutil.copyfile(load_run(result.folder.path).folder.trial(spec.trial_id).ds_config, path)
    except OSError as error:
        raise UserError(f"--write: {path}: {error.strerror or error}") from None
    on_nvme = Offload.NVME in {spec.offload_optimizer, spec.offload_param}
    return [
        f"written: {path}, the configuration of {best.shown.label}",
        *(["set nvme_path in it to a folder on your NVMe drive"] if on_nvme else []),
    ]
