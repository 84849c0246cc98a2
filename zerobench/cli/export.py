"""The body of `zerobench export`: what was asked, one library after the other, and a line for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zerobench.errors import UserError
from zerobench.report.exporters.exported import exported_trials
from zerobench.report.exporters.memory_viz import write_memory_viz
from zerobench.report.exporters.perfetto import write_perfetto
from zerobench.report.exporters.prometheus_file import write_prometheus
from zerobench.report.exporters.step_timeline import write_step_timelines
from zerobench.report.exporters.tensorboard_events import write_tensorboard
from zerobench.report.exporters.timelines import timelines
from zerobench.report.exporters.wandb_runs import write_wandb
from zerobench.store import find_run, load_run

_CHOICES = (
    "--prometheus FILE, --tensorboard DIR, --wandb PROJECT, --step-timeline FILE, --memory-viz DIR, --perfetto FILE"
)


@dataclass(frozen=True)
class Request:
    """What the command line asks for; None for a tool that is not wanted."""

    run: str | None
    reports: Path
    prometheus: Path | None = None
    tensorboard: Path | None = None
    wandb: str | None = None
    step_timeline: Path | None = None
    memory_viz: Path | None = None
    perfetto: Path | None = None

    @property
    def wants_something(self) -> bool:
        """Whether any tool is asked for."""
        places = (self.prometheus, self.tensorboard, self.wandb, self.step_timeline, self.memory_viz, self.perfetto)
        return any(place is not None for place in places)


def export(request: Request) -> Iterator[str]:
    """Export the run to each tool that is asked for; yields a line of what was done after each.

    Raises UserError: no tool is asked for, one's library is missing or refuses, or a record is torn.
    """
    if not request.wants_something:
        raise UserError(f"export: destination missing; choices: {_CHOICES}")
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
    if request.memory_viz is not None:
        count = write_memory_viz(timelines(run), request.memory_viz)
        yield f"{count} trials in {request.memory_viz}: drop a file on pytorch.org/memory_viz"
    if request.perfetto is not None:
        count = write_perfetto(timelines(run), request.perfetto)
        yield f"{count} ranks in {request.perfetto}: open it at ui.perfetto.dev"
