"""`zerobench run`: read the request, run the sweep, show its tables and the command to continue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from zerobench.app.terminal.answer import Answer, shortest
from zerobench.app.terminal.live import screen
from zerobench.app.terminal.requests import RunRequest
from zerobench.common.errors import UserError
from zerobench.common.file_errors import failure_of
from zerobench.common.redaction import redact_text
from zerobench.config.deepspeed import file_notes
from zerobench.config.derived.machine import Machine
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.precision import precision_notes
from zerobench.config.sweep.sweep import Sweep, load_sweep, shipped_sweeps
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.machine.this_machine import detect_machine, measure_arithmetic
from zerobench.launch.run.executor import LocalExecutor
from zerobench.launch.run.launcher import read_hosts
from zerobench.launch.run.runner import RunResult, refuse_other_plan, resume_run, standing, start_sweep
from zerobench.launch.run.setup import resolved_configs
from zerobench.records.store import find_run, load_run
from zerobench.report.documents.show import show_run


@dataclass(frozen=True)
class RunPlan:
    """A new sweep's plan, an earlier run to resume, or both, which then agree."""

    machine: Machine
    sweep: Sweep | None
    planned: list[PlannedTrial]
    earlier: Path | None


def run(request: RunRequest) -> Answer:
    """Run the requested sweep and write its tables."""
    result = start(request)
    _write_tables(result)
    return Answer(lambda: document(result), lambda: _show(result), result.exit_code)


def start(request: RunRequest) -> RunResult:
    """Run the requested sweep with progress on the screen."""
    plan = read(request)
    executor = executor_of(plan.machine, request)
    if plan.earlier is None:
        return _run_new(plan, request.reports, executor)
    environment = capture_environment()
    return resume_run(plan.earlier, environment=environment, executor=executor, observer=screen(), planned=plan.planned)


def executor_of(machine: Machine, request: RunRequest) -> LocalExecutor:
    """Return the executor for the trials of `request`."""
    return LocalExecutor(machine.cpu_cores, machine.num_gpus, request.hostfile.resolve() if request.hostfile else None)


def document(result: RunResult) -> dict[str, Any]:
    """JSON document of a finished run."""
    trials = [{"trial_id": name, "status": kept} for name, kept in standing(load_run(result.folder.path))]
    return {"run": str(result.folder.path), "interrupted": result.interrupted, "trials": trials}


def list_trials(request: RunRequest) -> Answer:
    """List the trials without starting any."""
    plan = read(request)

    def show() -> None:
        for line in _lines(plan):
            typer.echo(line)

    return Answer(lambda: {"trials": list(_listed(plan)), "notes": notes_of(plan.planned)}, show)


def _listed(plan: RunPlan) -> Iterator[dict[str, Any]]:
    if plan.earlier is not None:
        for trial_id, kept in standing(load_run(plan.earlier)):
            yield {"trial_id": trial_id, "runs": kept is None, "status": kept, "rule": None, "reason": None}
        return
    for item in plan.planned:
        rule, reason = (item.skipped.rule, item.skipped.reason) if item.skipped else (None, None)
        yield {"trial_id": item.trial.trial_id, "runs": rule is None, "status": None, "rule": rule, "reason": reason}


def _lines(plan: RunPlan) -> Iterator[str]:
    """One line per trial: `run`, or why not (skipped by a rule, completed earlier); then notes."""
    for trial in _listed(plan):
        why = f"  {trial['rule']}: {trial['reason']}" if trial["rule"] else ""
        yield f"{trial['status'] or ('skipped' if why else 'run'):<10}{trial['trial_id']}{why}"
    yield from (f"{'note':<10}{note}" for note in notes_of(plan.planned))


def notes_of(planned: Sequence[PlannedTrial]) -> list[str]:
    """Notes on unread keys in the user's DeepSpeed configurations of trials to run, without repeats."""
    return list(dict.fromkeys(note for trial in running(planned) for note in file_notes(trial)))


def running(planned: Iterable[PlannedTrial]) -> list[TrialSpec]:
    """Trials that no rule skips."""
    return [item.trial for item in planned if item.skipped is None]


def read(request: RunRequest) -> RunPlan:
    """Read and check the whole request, before anything is written or started."""
    sweep = _sweep(request)
    machine = detect_machine(num_nodes=len(read_hosts(request.hostfile)) if request.hostfile else 1)
    machine = measure_arithmetic(machine, sweep) if sweep else machine
    planned = expand(sweep, machine) if sweep else []
    resolved_configs(planned)
    earlier = find_run(request.resume, request.reports) if request.resume else None
    if earlier and sweep:
        refuse_other_plan(earlier, planned)
    return RunPlan(machine, sweep, planned, earlier)


def _sweep(request: RunRequest) -> Sweep | None:
    """Load the sweep; None if `--resume` alone selects the trials."""
    if request.sweep is not None:
        return load_sweep(request.sweep, request.sets or (), request.only or (), request.repeats)
    if request.resume is None:
        raise UserError(f"SWEEP is missing: a sweep file, or a shipped one: {', '.join(shipped_sweeps())}")
    if request.sets or request.only or request.repeats is not None:
        raise UserError("SWEEP is missing: --set, --only and --repeats need a sweep")
    return None


def _run_new(plan: RunPlan, reports: Path, executor: LocalExecutor) -> RunResult:
    if plan.sweep is None:
        raise UserError("SWEEP is missing")
    view = screen()
    if plan.sweep.description:
        view.say(redact_text(" ".join(plan.sweep.description.split())))
    for line in precision_notes(running(plan.planned), plan.machine):
        view.say(line)
    for note in notes_of(plan.planned):
        view.say(f"note: {note}")
    return start_sweep(plan.sweep, plan.planned, plan.machine, reports=reports, executor=executor, observer=view)


def _write_tables(result: RunResult) -> None:
    from zerobench.report.export.tidy_tables import tables_stand, write_tables  # noqa: PLC0415 -- pandas, which a dry run need not pay for

    opened = load_run(result.folder.path)
    try:
        if not tables_stand(opened):
            write_tables(opened)
    except OSError as error:
        raise UserError(
            f"{failure_of(error, result.folder.path)}; measurements are kept, "
            f"continue with: zerobench run --resume {result.folder.path}"
        ) from None


def _show(result: RunResult) -> None:
    """Show the tables, the run's folder, and the command to continue."""
    path = shortest(result.folder.path)
    if not result.interrupted:
        show_run(result.folder.path)
    typer.echo(f"Run: {path}")
    if result.exit_code:
        typer.echo(f"continue with: zerobench run --resume {path}")
