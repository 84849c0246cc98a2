"""`zerobench status`: show a run once, or repeatedly until nothing more will happen by itself.

The layout is one line of counts, then a table for each thing a person may act on, in 80 columns. Names, reasons and
node lists come from elsewhere: all are passed to rich as Text, without control characters.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from zerobench.app.terminal.answer import Answer, shortest
from zerobench.app.terminal.live_trial import describe, names_of
from zerobench.common.errors import UserError
from zerobench.common.units import counted, format_spent
from zerobench.launch.slurm.jobs import Submission
from zerobench.launch.slurm.watch.status import UNDONE, RunStatus, Standing, TrialStatus
from zerobench.launch.slurm.watch.watching import Watcher
from zerobench.records.folder import RunFolder
from zerobench.records.store import find_run
from zerobench.report.figures.notes import listed
from zerobench.report.words.column_units import MISSING, plain

MOST_ROWS = 20
"""Rows of one table; further ones are counted."""
SILENT_S = 600.0
"""A running trial silent for this long is marked: compiling DeepSpeed's C++ ops takes minutes, not ten."""

_STYLES = {
    Standing.COMPLETED: "green",
    Standing.FAILED: "bold red",
    Standing.LOST: "bold red",
    Standing.SKIPPED: "dim",
}
_WAITS = {
    "Resources": "waiting for nodes",
    "Priority": "other jobs have priority",
    "Dependency": "waiting for jobs it depends on",
    "DependencyNeverSatisfied": "a job it depends on failed: it will never start",
    "JobArrayTaskLimit": "array task limit reached: --throttle",
    "BeginTime": "requeued jobs wait two minutes, or --begin is later",
    "JobHeldUser": "held: scontrol release JOB",
    "JobHeldAdmin": "held by an administrator",
    "ReqNodeNotAvail": "its nodes are down, drained or reserved",
    "PartitionNodeLimit": "more nodes than the partition allows: it will never start",
    "PartitionTimeLimit": "more time than the partition allows: it will never start",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is closed",
    "BadConstraints": "no node has the requested resources: it will never start",
    "Reservation": "its reservation has not started",
    "AssociationJobLimit": "your account's limit of jobs",
    "QOSJobLimit": "the QOS's limit of jobs",
    "launch_failed_requeued_held": "launch failed, held: scontrol release JOB",
}
"""Meaning of Slurm's common reason codes of waiting jobs (squeue(1), section JOB REASON CODES)."""


Names = Mapping[str, str]
"""Trial names of other tables by trial id."""


def status_view(run: RunFolder, submission: Submission, status: RunStatus, names: Names) -> RenderableType:
    return Group(headline(run, status), details(submission, status, names))


def details(submission: Submission, status: RunStatus, names: Names) -> RenderableType:
    """The tables below the line of counts."""
    parts = list(_about_slurm(submission, status))
    trials = (_running(status, names), _waiting(status), _failed(status, names), _undone(status, names))
    for section in (_jobs(status), *trials):
        parts += section
    return Group(*parts)


def headline(run: RunFolder, status: RunStatus) -> Text:
    """The run and its number of trials by standing."""
    counts = status.counts
    line = Text(plain(f"{run.run_id}: {counted(len(status.trials), 'trial')}"))
    for standing in Standing:
        if counts[standing]:
            line.append(", ")
            line.append(f"{counts[standing]} {standing.value}", style=_STYLES.get(standing, ""))
    return line


def _about_slurm(submission: Submission, status: RunStatus) -> Iterator[RenderableType]:
    if any(job.job_id is not None for job in submission.jobs) and not status.slurm_answers:
        open_ends = " Started trials may be running or lost, submitted ones waiting or cancelled."
        sentence = "! Slurm does not answer here: status from the run folder only."
        yield Text(sentence + (open_ends if status.is_going else ""), style="yellow")


def _jobs(status: RunStatus) -> Iterator[RenderableType]:
    rows = []
    for job in status.jobs:
        states = ", ".join(f"{count} {state}" for state, count in job.states.most_common())
        again = f"; {counted(job.restarts, 'restart')}" if job.restarts else ""
        job_id = MISSING if job.job.job_id is None else str(job.job.job_id)
        rows.append([job.job.name, job_id, str(job.job.num_nodes), f"{states}{again}", _rounded(job.time_left_s)])
    return _section("Jobs", ("job", "Slurm's id", "nodes", "tasks", "time left"), rows, numbers={1, 2, 4})


def _running(status: RunStatus, names: Names) -> Iterator[RenderableType]:
    open_trials = [trial for trial in status.trials if trial.standing in {Standing.RUNNING, Standing.BEGUN}]
    open_trials.sort(key=lambda trial: -(trial.silence_s or 0.0))
    rows = [
        [
            _name(trial, names),
            _task(trial),
            describe(trial.ranks),
            f"{_rounded(trial.silence_s)}{' !' if _is_long_silent(trial) else ''}",
        ]
        for trial in open_trials
    ]
    runs = any(trial.standing is Standing.RUNNING for trial in open_trials)
    title = "Running" if runs else "Started, without a record"
    yield from _section(title, ("trial", "task", "phase", "silent for"), rows, numbers={3})
    if silent := [trial.trial_id for trial in open_trials if _is_long_silent(trial)]:
        yield Text(plain(f"! no progress for {_rounded(SILENT_S)}: it may hang; logs: trials/{listed(silent, 3)}"))


def _name(trial: TrialStatus, names: Names) -> str:
    return names.get(trial.trial_id, trial.trial_id)


def _task(trial: TrialStatus) -> str:
    """Slurm's name for the task that does it."""
    return f"{trial.job.job_id}_{trial.task_id}" if trial.job and trial.job.job_id is not None else MISSING


def _is_long_silent(trial: TrialStatus) -> bool:
    return trial.silence_s is not None and trial.silence_s >= SILENT_S


def _waiting(status: RunStatus) -> Iterator[RenderableType]:
    groups = Counter(
        (trial.job.name, _waiting_reason(trial))
        for trial in status.trials
        if trial.job is not None and trial.standing in {Standing.QUEUED, Standing.SUBMITTED}
    )
    rows = [[name, str(count), why] for (name, why), count in groups.items()]
    yield from _section("Waiting", ("job", "trials", "reason"), rows, numbers={1})


def _waiting_reason(trial: TrialStatus) -> str:
    if trial.standing is Standing.SUBMITTED:
        return "unknown"
    if not trial.reason:
        return "behind earlier trials of the same task"
    return f"{_WAITS[trial.reason]} ({trial.reason})" if trial.reason in _WAITS else trial.reason


def _failed(status: RunStatus, names: Names) -> Iterator[RenderableType]:
    failed = [trial for trial in status.trials if trial.standing is Standing.FAILED]
    kinds = Counter(_words(trial.trace.status) for trial in failed)
    title = f"Failed: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"
    rows = [[_name(trial, names), _words(trial.trace.status), trial.reason or MISSING] for trial in failed]
    yield from _section(title, ("trial", "how", "why"), rows)
    if failed:
        yield Text(plain(f"logs: trials/{listed([trial.trial_id for trial in failed], 3)}"))


def _words(status: str | None) -> str:
    return (status or MISSING).replace("_", " ")


def _undone(status: RunStatus, names: Names) -> Iterator[RenderableType]:
    sentences = {
        Standing.LOST: "started, without a record, and their job is over",
        Standing.LEFT_OVER: "never started, and their jobs are over",
        Standing.NOT_STARTED: "never started, and in no job",
    }
    for standing, sentence in sentences.items():
        labels = [_name(trial, names) for trial in status.trials if trial.standing is standing]
        if labels:
            yield Text()
            yield Text(plain(f"{len(labels)} {standing.value}: {sentence}: {listed(labels, 3)}"))


def next_step(run: RunFolder, status: RunStatus) -> str | None:
    """Command that continues the run; None if there is nothing to do, or only to wait."""
    counts = status.counts
    if not any(counts[standing] for standing in UNDONE) and (status.is_going or not counts[Standing.FAILED]):
        return None
    return plain(
        f"continue with: zerobench {_verb(run, status)} --resume {shlex.quote(str(shortest(run.path.resolve())))}"
    )


def _verb(run: RunFolder, status: RunStatus) -> str:
    """The command that started the run, which also continues it."""
    if not run.slurm.exists():
        return "run"
    is_local = bool(status.jobs) and all(job.job.job_id is None for job in status.jobs)
    return "submit --local" if is_local else "submit"


def _section(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: frozenset[int] | set[int] = frozenset()
) -> Iterator[RenderableType]:
    """A titled table; nothing without rows."""
    if not rows:
        return
    yield Text()
    yield Text(plain(title), style="bold")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, header in enumerate(headers):
        is_number = number in numbers
        table.add_column(header, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows[:MOST_ROWS]:
        table.add_row(*(Text(plain(cell)) for cell in row))
    yield table
    if len(rows) > MOST_ROWS:
        yield Text(f"and {len(rows) - MOST_ROWS} more", style="dim")


def _rounded(seconds: float | None) -> str:
    return MISSING if seconds is None else format_spent(seconds)


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
