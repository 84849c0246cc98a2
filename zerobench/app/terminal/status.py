"""`zerobench status`: show a run once, or repeatedly until nothing more will happen by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from zerobench.app.terminal.answer import Answer
from zerobench.app.terminal.live_trial import names_of
from zerobench.app.terminal.status_view import details, headline, next_step, status_view
from zerobench.common.errors import UserError
from zerobench.launch.slurm.jobs import Submission
from zerobench.launch.slurm.watch.status import RunStatus
from zerobench.launch.slurm.watch.watching import Watcher
from zerobench.records.folder import RunFolder
from zerobench.records.store import find_run


def show_status(name: str | None, reports: Path) -> Answer:
    """Show the run's status."""
    watcher, console = _watcher(name, reports), Console(highlight=False)
    submission, status = watcher.look()

    def show() -> None:
        console.print(status_view(watcher.run, submission, status, names_of(watcher.run)))
        _print_next_step(console, watcher.run, status)

    return Answer(lambda: _document(watcher.run, status), show, status.exit_code)


def follow_run(name: str | None, reports: Path, every_s: float) -> Answer:
    """Show the run's status every `every_s` seconds until it is over.

    On a terminal the view is redrawn in place; elsewhere a line is printed when the counts change, and the rest of the
    view at the end.
    """
    watcher, console = _watcher(name, reports), Console(highlight=False)
    status = (_redraw if console.is_terminal else _print_changes)(watcher, console, every_s)
    _print_next_step(console, watcher.run, status)
    return Answer(lambda: _document(watcher.run, status), exit_code=status.exit_code)


def _redraw(watcher: Watcher, console: Console, every_s: float) -> RunStatus:
    names = names_of(watcher.run)
    with Live(console=console, auto_refresh=False) as live:
        for submission, status in _looks(watcher, every_s):
            live.update(status_view(watcher.run, submission, status, names), refresh=True)
    return status


def _print_changes(watcher: Watcher, console: Console, every_s: float) -> RunStatus:
    last_line = None
    for look in _looks(watcher, every_s):
        line = headline(watcher.run, look[1])
        if line != last_line:
            console.print(line, soft_wrap=True)
            last_line = line
    console.print(details(*look, names_of(watcher.run)))
    return look[1]


def _looks(watcher: Watcher, every_s: float) -> Iterator[tuple[Submission, RunStatus]]:
    """Look at a run repeatedly; the last look is the one after which nothing more will happen by itself."""
    while True:
        submission, status = watcher.look()
        yield submission, status
        if not status.is_going:
            return
        time.sleep(every_s)


def _print_next_step(console: Console, run: RunFolder, status: RunStatus) -> None:
    step = next_step(run, status)
    if step is not None:
        console.print(Text(step), soft_wrap=True)  # one line however long, to be copied


def _document(run: RunFolder, status: RunStatus) -> dict[str, Any]:
    """JSON document of the run's status."""
    return {
        "run": str(run.path),
        "is_going": status.is_going,
        "slurm_answers": status.slurm_answers,
        "counts": {standing.value: count for standing, count in status.counts.items()},
        "trials": [
            {
                "trial_id": trial.trial_id,
                "standing": trial.standing.value,
                "reason": trial.reason,
                "job": None if trial.job is None else trial.job.name,
                "task_id": trial.task_id,
                "silence_s": trial.silence_s,
            }
            for trial in status.trials
        ],
        "jobs": [
            {
                "name": job.job.name,
                "job_id": job.job.job_id,
                "tasks": job.job.num_tasks,
                "states": job.states,
                "time_left_s": job.time_left_s,
            }
            for job in status.jobs
        ],
        "next": next_step(run, status),
    }


def _watcher(name: str | None, reports: Path) -> Watcher:
    """Return the watcher of the run that `name` selects.

    Raises UserError if there is none.
    """
    try:
        return Watcher(RunFolder(find_run(name, reports)))
    except OSError as error:
        raise UserError(f"--reports: {reports}: cannot be read: {error.strerror or error}") from None
