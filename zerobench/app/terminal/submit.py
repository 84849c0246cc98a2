"""`zerobench submit`: read the request, lay out the run folder, and submit its jobs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from zerobench.app.terminal.answer import Answer, shortest
from zerobench.app.terminal.requests import SubmitRequest
from zerobench.app.terminal.run import notes_of, running
from zerobench.common.collection import no_collection
from zerobench.common.errors import UserError
from zerobench.common.training_python import VARIABLE
from zerobench.common.units import counted
from zerobench.config.derived.machine import Machine
from zerobench.config.sweep.expand import PlannedTrial, expand
from zerobench.config.sweep.precision import precision_notes
from zerobench.config.sweep.sweep import Sweep, load_sweep, shipped_sweeps
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.machine.installed import check_installed
from zerobench.launch.machine.this_machine import detect_machine, measure_arithmetic
from zerobench.launch.run.lock import refuse_links
from zerobench.launch.run.mending import mend_skipped
from zerobench.launch.run.runner import mend_run, refuse_own_script
from zerobench.launch.run.setup import lay_out, new_run_folder, resolved_configs
from zerobench.launch.run.stop import stop_on_signals
from zerobench.launch.slurm.jobs import JobKind, read_submission
from zerobench.launch.slurm.options import (
    Launcher,
    SubmitOptions,
    cluster_machine,
    keep_options,
    kept_options,
    read_options,
    refuse_own_environments,
    time_text,
)
from zerobench.launch.slurm.queue import job_states
from zerobench.launch.slurm.submit.batch import log_pattern
from zerobench.launch.slurm.submit.grouping import WARNED_BEFORE_S, JobArray
from zerobench.launch.slurm.submit.limits import Limits, read_limits
from zerobench.launch.slurm.submit.local import refuse_several_nodes, run_here
from zerobench.launch.slurm.submit.submission import array_names, missing, plan_arrays
from zerobench.launch.slurm.submit.submission import submit as submit_jobs
from zerobench.records.folder import RunFolder
from zerobench.records.store import Run, find_run, load_run
from zerobench.report.documents.terminal import in_width


@dataclass(frozen=True)
class SubmissionPlan:
    """A new sweep's plan or an earlier run, and the arrays that run its missing trials."""

    options: SubmitOptions
    limits: Limits
    arrays: list[JobArray]
    num_skipped: int = 0
    sweep: Sweep | None = None
    planned: Sequence[PlannedTrial] = ()
    earlier: Run | None = None
    machine: Machine | None = None


def submit(request: SubmitRequest) -> Answer:
    """Lay out the requested run and submit it to Slurm, or run it here."""
    with no_collection():
        plan = read(request)
    try:
        if plan.earlier:
            mend_skipped(plan.earlier)
        if not plan.arrays:
            typer.echo("no trials missing")
            return Answer(lambda: {"run": str(plan.earlier and plan.earlier.folder.path), "jobs": []})
        _warn(plan)
        run = plan.earlier.folder if plan.earlier else _lay_out(plan, request.reports)
        keep_options(run, plan.options)
        return _run_here(run, plan) if request.local else _submit(run, plan)
    except OSError as error:
        raise UserError(f"{error.filename or request.reports}: cannot be written: {error.strerror or error}") from None


def show(request: SubmitRequest) -> Answer:
    """Show the submission without making it."""
    plan = read(request)

    def lines() -> None:
        typer.echo(in_width(_lines(plan)), nl=False)
        _warn(plan)

    return Answer(lambda: _document(plan), lines)


def read(request: SubmitRequest) -> SubmissionPlan:
    """Read and check the whole request, before anything is written or submitted."""
    log_pattern(request.reports.absolute(), "")
    plan = _resumed(request) if request.resume else _planned(request)
    if request.local:
        refuse_several_nodes(plan.arrays)
    return plan


def _planned(request: SubmitRequest) -> SubmissionPlan:
    if request.sweep is None:
        raise UserError(f"SWEEP is missing: a sweep file, or a shipped one: {', '.join(shipped_sweeps())}")
    options = _options(request, {})
    sweep = load_sweep(request.sweep, request.sets or (), request.only or (), request.repeats)
    machine = _machine(options, sweep if request.local else None)
    planned = expand(sweep, machine)
    trials = [item.trial for item in planned if item.skipped is None]
    reasons = [item.skipped.reason for item in planned if item.skipped]
    if not trials:
        raise UserError(f"{sweep.where}: every trial is skipped; the first: {reasons[0]}")
    if not request.local:
        refuse_own_environments(trials)
    if not request.dry_run:
        _check_interpreter(options, trials)
    limits = _limits(options, required=not (request.dry_run or request.local))
    arrays = plan_arrays(trials, options, limits)
    return SubmissionPlan(options, limits, arrays, len(reasons), sweep, planned, machine=machine)


def _resumed(request: SubmitRequest) -> SubmissionPlan:
    if request.sweep is not None or request.sets or request.only or request.repeats is not None:
        raise UserError("--resume continues a run as planned; drop SWEEP, --set, --only and --repeats")
    folder = RunFolder(find_run(request.resume, request.reports).resolve())
    if not request.dry_run:
        mend_run(folder, capture_environment)
    run = load_run(folder.path)
    refuse_links(run.folder, ())
    options = _options(request, kept_options(run.folder))
    if not request.local:
        _machine(options, None)
    limits = _limits(options, required=not (request.dry_run or request.local))
    ids = [job.job_id for job in read_submission(run.folder).jobs if job.job_id is not None]
    states = job_states(ids) if ids else {}
    # Without an answer a trial could be submitted twice: once more, and by a job that still waits.
    if states is None:
        raise UserError(f"--resume: {run.folder.path} has jobs that may still be queued, and squeue does not answer")
    refuse_own_script(run)
    trials = [run.spec_to_run(trial_id) for trial_id in missing(run, states)]
    if not request.dry_run:
        _check_interpreter(options, trials)
    return SubmissionPlan(options, limits, plan_arrays(trials, options, limits), earlier=run)


def _options(request: SubmitRequest, kept: Mapping[str, Any]) -> SubmitOptions:
    """Options of this request over `kept` ones of an earlier submission; without Slurm, only one launcher applies."""
    values = {name: getattr(request, name) for name in SubmitOptions.model_fields}
    given = {name: value for name, value in values.items() if value not in (None, [])}
    elsewhere = {"launcher", "container", "container_runtime"} if request.local else set()
    refused = sorted(elsewhere & set(given))
    if refused:
        raise UserError(f"--{refused[0].replace('_', '-')} does not go with --local; drop one of them")
    if named := os.environ.get(VARIABLE) if not given.get("container") else None:
        given.setdefault("python", named)
    if "/" in (given.get("python") or "") and not given.get("container"):
        given["python"] = str(Path(given["python"]).absolute())
    return read_options({name: value for name, value in kept.items() if name not in elsewhere} | given)


def _machine(options: SubmitOptions, here: Sweep | None) -> Machine:
    """The nodes that trials run on; for a sweep that runs `here`, this machine unless options describe the nodes."""
    if here is None:
        return cluster_machine(options)
    return measure_arithmetic(detect_machine() if options.gpus_per_node is None else cluster_machine(options), here)


def _check_interpreter(options: SubmitOptions, trials: Sequence[TrialSpec]) -> None:
    """Raise UserError if trials would run under this interpreter and it lacks their packages, as on a login node."""
    # Simulations run outside any container, under this interpreter.
    if options.container is not None:
        simulated = [trial for trial in trials if trial.evidence.is_forked]
        check_installed(
            simulated, "they run outside the container; drop them, or submit them separately with --python PATH"
        )
    elif options.python is None:
        check_installed(trials, "give the ranks' interpreter (--python PATH) or container (--container IMAGE)")


def _limits(options: SubmitOptions, *, required: bool) -> Limits:
    limits = read_limits(options)
    if limits is None and required:
        raise UserError("Slurm does not answer (scontrol show config); --dry-run and --local need none")
    return limits or Limits()


def _lay_out(plan: SubmissionPlan, reports: Path) -> RunFolder:
    if plan.sweep is None:
        raise UserError("SWEEP is missing")
    with no_collection():
        configs = resolved_configs(plan.planned)
        run = new_run_folder(reports, plan.sweep.name)
        slowdown = None if plan.machine is None else plan.machine.bf16_slowdown
        environment = capture_environment() | {"bf16_slowdown": slowdown}
        lay_out(run, plan.planned, configs, plan.sweep.document, environment, make_folders=False)
    return run


def _submit(run: RunFolder, plan: SubmissionPlan) -> Answer:
    jobs = []
    for job in submit_jobs(run, plan.arrays, plan.options, plan.limits):
        tasks = f", {job.num_tasks} tasks" if job.num_tasks > 1 else ""
        typer.echo(f"submitted {job.name}: job {job.job_id}{tasks}")
        jobs.append({"name": job.name, "job_id": job.job_id, "tasks": job.num_tasks})
    typer.echo(f"Run: {shortest(run.path)}")
    typer.echo(f"watch with: zerobench status {shlex.quote(str(shortest(run.path)))}")
    return Answer(lambda: {"run": str(run.path), "jobs": jobs})


def _run_here(run: RunFolder, plan: SubmissionPlan) -> Answer:
    """Run the jobs here; exit status 1 if one failed, 130 if interrupted."""
    options = plan.options.model_copy(update={"launcher": Launcher.LOCAL})
    failed, jobs = False, []
    with stop_on_signals() as stop:
        for ended in run_here(run, plan.arrays, options, plan.limits, stop):
            failed |= ended.exit_code != 0
            jobs.append({"name": ended.job.name, "task_id": ended.task_id, "exit_code": ended.exit_code})
            task = f" task {ended.task_id + 1} of {ended.job.num_tasks}" if ended.job.num_tasks > 1 else ""
            how = "done" if ended.exit_code == 0 else f"exit status {ended.exit_code}, see {shortest(ended.log)}"
            typer.echo(f"{ended.job.name}{task}: {how}")
    typer.echo(f"Run: {shortest(run.path)}")
    return Answer(lambda: {"run": str(run.path), "jobs": jobs}, exit_code=130 if stop.asked else int(failed))


def _document(plan: SubmissionPlan) -> dict[str, Any]:
    """JSON document of a submission that was not made."""
    arrays = [
        {
            "kind": str(array.kind),
            "nodes": array.num_nodes,
            "tasks": len(array.tasks),
            "trials": array.num_trials,
            "time_limit_s": array.time_limit_s,
            "node_hours": array.node_hours,
        }
        for array in plan.arrays
    ]
    return {"arrays": arrays, "skipped": plan.num_skipped}


def _lines(plan: SubmissionPlan) -> Iterator[str]:
    """One line per array, then the totals."""
    run = plan.earlier.folder if plan.earlier else RunFolder(Path("new"))
    names = array_names(run, plan.arrays)
    width = max(map(len, [*names, "report"]), default=0)
    for name, array in zip(names, plan.arrays, strict=True):
        yield f"{name:<{width}}  {_array_line(array)}"
    if plan.arrays:
        yield f"{'report':<{width}}  after them"
    trials = sum(array.num_trials for array in plan.arrays)
    skipped = f", {plan.num_skipped} skipped" if plan.num_skipped else ""
    hours = sum(array.node_hours for array in plan.arrays)
    yield f"{counted(trials, 'trial')}{skipped}; {hours:,.1f} node-hours at most"


def _warn(plan: SubmissionPlan) -> None:
    """Print notes, and warn about jobs too short for any trial before they wait in the queue for nothing."""
    notes = [f"note: {note}" for note in notes_of(plan.planned)]
    if plan.machine is not None:
        notes += precision_notes(running(plan.planned), plan.machine)
    typer.echo(in_width(notes), nl=False)
    # Slurm would start such a job, warn it at once, and the trial would stop: found out after hours in the queue.
    for array in plan.arrays:
        if array.time_limit_s <= WARNED_BEFORE_S:
            what = "predictions" if array.kind is JobKind.PREDICTIONS else "trials"
            typer.echo(
                f"warning: jobs of {what} get {time_text(array.time_limit_s)} (the partition's limit, or "
                f"--time), and Slurm warns them up to {WARNED_BEFORE_S} s before the end: their trials "
                "would stop as they start; use another --partition or a longer --time",
                err=True,
            )


def _array_line(array: JobArray) -> str:
    nodes, time = counted(array.num_nodes, "node"), time_text(array.time_limit_s)
    tasks = f"1 task of {counted(array.num_trials, 'trial')}"
    if len(array.tasks) > 1:
        tasks = f"{len(array.tasks)} tasks of up to {max(map(len, array.tasks))} of {array.num_trials:,} trials"
    return f"{nodes}, {tasks}, {time} each, {array.node_hours:,.1f} node-hours"
