"""`zerobench export`: write the run for each requested tool."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerobench.app.terminal.requests import ExportRequest
from zerobench.common.errors import UserError
from zerobench.common.units import counted
from zerobench.records.store import Run, find_run, load_run
from zerobench.report.export.exported import exported_trials
from zerobench.report.export.memory_viz import write_memory_viz
from zerobench.report.export.perfetto import write_perfetto
from zerobench.report.export.prometheus_file import write_prometheus
from zerobench.report.export.step_timeline import write_step_timelines
from zerobench.report.export.tensorboard_events import write_tensorboard
from zerobench.report.export.timelines import timelines
from zerobench.report.export.wandb_runs import write_wandb

_TOOLS: Mapping[str, tuple[str, Callable[[Run, Any], int], str]] = {
    "prometheus": ("FILE", lambda run, to: write_prometheus(exported_trials(run), to), "sample in {to}"),
    "tensorboard": (
        "DIR",
        lambda run, to: write_tensorboard(exported_trials(run), to),
        "trial in {to}: tensorboard --logdir {to}",
    ),
    "wandb": ("PROJECT", lambda run, to: write_wandb(exported_trials(run), to), "trial in the project {to}"),
    "memory-viz": (
        "DIR",
        lambda run, to: write_memory_viz(timelines(run), to),
        "trial in {to}: drop a file on pytorch.org/memory_viz",
    ),
    "perfetto": (
        "FILE",
        lambda run, to: write_perfetto(timelines(run), to),
        "rank in {to}: open it at ui.perfetto.dev",
    ),
    "step-timeline": ("FILE", write_step_timelines, "step in {to}: open it at ui.perfetto.dev"),
}
"""By option: its metavar, its writer (which returns a count), and the text after the count."""


def export(request: ExportRequest) -> Iterator[str]:
    """Export the run to each requested tool; yields a line after each.

    Raises UserError if no tool is given, a tool's library is missing or refuses, or a record is torn.
    """
    destinations = {option: getattr(request, option.replace("-", "_")) for option in _TOOLS}
    wanted = {option: to for option, to in destinations.items() if to is not None}
    if not wanted:
        choices = ", ".join(f"--{option} {metavar}" for option, (metavar, _, _) in _TOOLS.items())
        raise UserError(f"export: destination missing; choices: {choices}")
    if not str(wanted.get("wandb", "zerobench")).strip():
        raise UserError("--wandb: project name missing; for example zerobench")
    run = load_run(find_run(request.run, request.reports))
    for option, to in wanted.items():
        _, write, what = _TOOLS[option]
        noun, _, where = what.format(to=to).partition(" ")
        yield f"{counted(write(run, to), noun)} {where}"
