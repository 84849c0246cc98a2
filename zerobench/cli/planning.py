"""What `zerobench plan` does: has the plan predicted, prints it, and writes what is recommended."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import typer

from zerobench.cli.live import ANSWERS, prediction_view
from zerobench.cli.paths import shortest
from zerobench.cli.run import notes_of
from zerobench.errors import UserError
from zerobench.report.plan.rows import PlanRow
from zerobench.report.plan.view import plan_view
from zerobench.report.render.terminal import print_parts
from zerobench.report.tables.plan_frontier import frontier_part
from zerobench.run.runner import RunResult
from zerobench.search.plan import Plan, Request, read_plan
from zerobench.search.predict import predict
from zerobench.search.predicted import frontier_rows, plan_frontiers
from zerobench.spec.cluster import read_tokens
from zerobench.spec.frontier_axes import FrontierAxis, frontier_axis
from zerobench.spec.trial import Offload, slug
from zerobench.store import STAMP, load_run


def plan(request: Request, *, details: bool = False) -> int:
    """Predict what is asked for and show it; the command's exit status: 1 where nothing fits or a trial failed."""
    tokens = None if request.tokens is None else read_tokens("--tokens", request.tokens)
    asked = read_plan(request)
    if request.frontier is not None:
        return _frontier(asked, frontier_axis(request.frontier), request.reports)
    result = predict(asked.planned, asked.name, asked.document, request.reports, prediction_view())
    if result.interrupted:
        return result.exit_code
    view = plan_view(result.folder.path, asked.cluster, tokens)
    best = view.best
    print_parts([*(view.details if details or not view.answer else ()), *view.answer])
    for note in (*([asked.world.note] if asked.world.note else []), *notes_of(asked.planned)):
        typer.echo(f"note: {note}")
    if request.write is not None and best is not None:
        _write(result, best, request.write)
    _next(result, best, request.write, details=details)
    return 1 if best is None or set(result.statuses) - ANSWERS else 0


def _next(result: RunResult, best: PlanRow | None, written: Path | None, *, details: bool) -> None:
    """Where the configuration lies, and what to do next."""
    run = shortest(result.folder.path)
    if best is not None and best.trial.spec.zero_stage is not None:
        config = written or run / "trials" / best.trial.spec.trial_id / "ds_config.json"
        typer.echo(f"Next: deepspeed train.py --deepspeed_config {config}")
    more = "" if details else "; --details for reasons, categories and bounds"
    typer.echo(f"Run: {run}{more}")


def _frontier(asked: Plan, axis: FrontierAxis, reports: Path) -> int:
    """Print what fits along `axis`, in a folder for the whole search; 1 where a prediction failed."""
    folder = reports / f"{slug(asked.name)}-frontier-{axis.name}_{time.strftime(STAMP)}"
    found = plan_frontiers(asked, axis, folder, prediction_view())
    print_parts([frontier_part(axis, frontier_rows(asked, found), asked.cluster)])
    for name, reason in found.given_up.items():
        typer.echo(f"given up: {name}: {reason}")
    typer.echo(f"runs: {folder}")
    return 1 if found.given_up else 0


def _write(result: RunResult, best: PlanRow, path: Path) -> None:
    """The recommended trial's configuration, ready for DeepSpeed."""
    spec = best.trial.spec
    try:
        shutil.copyfile(load_run(result.folder.path).folder.trial(spec.trial_id).ds_config, path)
    except OSError as error:
        raise UserError(f"--write: {path}: {error.strerror or error}") from None
    typer.echo(f"written: {path}, the configuration of {best.shown.label}")
    if Offload.NVME in {spec.offload_optimizer, spec.offload_param}:
        typer.echo("set nvme_path in it to a folder on your NVMe drive")
