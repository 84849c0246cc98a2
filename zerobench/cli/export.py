"""The body of `zerobench export`: what was asked, one library after the other, and a line for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobench.errors import UserError
from zerobench.report.exporters.exported import exported_trials
from zerobench.report.exporters.memory_viz import write_memory_viz
from zerobench.report.exporters.perfetto import write_perfetto
from zerobench.report.exporters.prometheus_file import write_prometheus
from zerobench.report.exporters.step_timeline import write_step_timelines
from zerobench.report.exporters.tensorboard_events import write_tensorboard
from zerobench.report.exporters.timelines import timelines
from zerobench.report.exporters.wandb_runs import write_wandb
from zerobench.store import Run, find_run, load_run

Destination = Path | str
"""A file, a folder, or the name of a project."""


@dataclass(frozen=True)
class _Tool:
    """What a run is written for."""

    metavar: str
    write: Callable[[Run, Any], int]
    """To a destination; returns how much."""
    done: str
    """What is said then, of that `count` and that destination, `to`."""


_TOOLS = {
    "prometheus": _Tool("FILE", lambda run, to: write_prometheus(exported_trials(run), to), "{count} samples in {to}"),
    "tensorboard": _Tool(
        "DIR",
        lambda run, to: write_tensorboard(exported_trials(run), to),
        "{count} trials in {to}: tensorboard --logdir {to}",
    ),
    "wandb": _Tool(
        "PROJECT", lambda run, to: write_wandb(exported_trials(run), to), "{count} trials in the project {to}"
    ),
    "memory-viz": _Tool(
        "DIR",
        lambda run, to: write_memory_viz(timelines(run), to),
        "{count} trials in {to}: drop a file on pytorch.org/memory_viz",
    ),
    "perfetto": _Tool(
        "FILE",
        lambda run, to: write_perfetto(timelines(run), to),
        "{count} ranks in {to}: open it at ui.perfetto.dev",
    ),
    "step-timeline": _Tool("FILE", write_step_timelines, "{count} steps in {to}: open it at ui.perfetto.dev"),
}
"""By the names of their options."""


def export(name: str | None, reports: Path, asked: Mapping[str, Destination | None]) -> Iterator[str]:
    """Export the run called `name` to each tool that `asked` has a destination for, by the names of the options; yields
    a line of what was done after each.

    Raises UserError: no tool is asked for, one's library is missing or refuses, or a record is torn.
    """
    wanted = {option: to for option, to in asked.items() if to is not None}
    if not wanted:
        choices = ", ".join(f"--{option} {tool.metavar}" for option, tool in _TOOLS.items())
        raise UserError(f"export: destination missing; choices: {choices}")
    if not str(wanted.get("wandb", "zerobench")).strip():
        raise UserError("--wandb: project name missing; for example zerobench")
    run = load_run(find_run(name, reports))
    for option, tool in _TOOLS.items():
        if option in wanted:
            to = wanted[option]
            yield tool.done.format(count=tool.write(run, to), to=to)
