"""The body of `zerobench export`: what was asked, one library after the other, and a line for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerobench.errors import UserError
from zerobench.report.exporters.exported import exported_trials
from zerobench.report.exporters.prometheus_file import write_prometheus
from zerobench.report.exporters.step_timeline import write_step_timelines
from zerobench.report.exporters.tensorboard_events import write_tensorboard
from zerobench.report.exporters.wandb_runs import write_wandb
from zerobench.store import find_run, load_run


@dataclass(frozen=True)
class Request:
    """What the command line asks for; None for a tool that is not wanted."""

    run: str | None
    reports: Path
    prometheus: Path | None = None
    tensorboard: Path | None = None
    wandb: str | None = None
    step_timeline: Path | None = None


def export(request: Request) -> Iterator[str]:
    """Export the run to each tool that is asked for; yields a line of what was done after each.

    Raises UserError: no tool is asked for, one's library is missing or refuses, or a record is torn.
    """
    if (request.prometheus, request.tensorboard, request.wandb, request.step_timeline) == (None,) * 4:
        choices = "--prometheus FILE, --tensorboard DIR, --wandb PROJECT, --step-timeline FILE"
        raise UserError(f"export: destination missing; choices: {choices}")
    if request.wandb is not None and not request.wandb.strip():
        raise UserError("--wandb: project name missing; for example zerobench")
    run = load_run(find_run(request.run, request.reports))
    if request.prometheus is not None:
        count = write_prometheus(exported_trials(run), request.prometheus)
        yield f"{count} samples in {request.prometheus}"
    if request.tensorboard is not None:
        count = write_tensorboard(exported_trials(run), request.tensorboard)
        yield f"{count} trials in {request.tensorboard}: tensorboard --logdir {request.tensorboard}"
    if request.wandb is not None:
        count = write_wandb(exported_trials(run), request.wandb)
        yield f"{count} trials in the project {request.wandb}"
    if request.step_timeline is not None:
        count = write_step_timelines(run, request.step_timeline)
        yield f"{count} steps in {request.step_timeline}: open it at ui.perfetto.dev"
