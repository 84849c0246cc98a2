"""`zerobench run SWEEP --frontier AXIS`: measure the largest value that fits, each try in fresh processes.

A prediction comes first, in the same way as for plans (app/search/plan_world.py): it takes seconds per try and needs no
device. The measured search starts from its answer and slope, so a correct prediction costs two measured trials per
cell: one that fits, one that does not.

A round runs the next tries of all searches as one ordinary run, so measurements are kept in run folders whatever
happens later: `<sweep>-frontier-<axis>_<time>/measured/round-<n>_<time>`, predictions next to it under `predicted`, and
the answer in `frontier.json`.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import typer

from zerobench.app.search.measured import (
    MeasuredSearch,
    frontier_document,
    measured,
    predicted_first,
    run_frontier_rows,
)
from zerobench.app.terminal import run
from zerobench.app.terminal.answer import Answer
from zerobench.app.terminal.live import screen
from zerobench.app.terminal.live_predictions import prediction_view
from zerobench.app.terminal.requests import RunRequest
from zerobench.common.errors import UserError
from zerobench.common.units import format_bytes, parse_bytes
from zerobench.config.derived.frontier_axes import FrontierAxis, frontier_axis
from zerobench.config.derived.machine import Accelerator, Machine
from zerobench.config.trial.trial import Evidence, StepsSpec, TrialSpec
from zerobench.launch.run.executor import check_trials
from zerobench.launch.run.setup import new_run_folder
from zerobench.records.folder import write_whole, writing
from zerobench.records.trials import refuse_impossible_values
from zerobench.report.documents.terminal import print_parts, screen_width
from zerobench.report.figures.run.run_frontier import Limit
from zerobench.report.tables.run_frontier import run_frontier_table
from zerobench.report.words.labels import labels

TRY_STEPS = StepsSpec(warmup=1, memory=1, timed=2)
"""Steps of each try: one decides whether it fits, two more time the largest that does."""


def run_frontier(request: RunRequest) -> Answer:
    """Measure the frontier and show it; exit status 1 if a search was given up.

    Raises UserError for a mistake in the request, before anything is written or started.
    """
    search = read_search(request)
    with writing(f"--reports: {request.reports}"):
        folder = new_run_folder(request.reports, f"{search.name}-frontier-{search.axis.name}").path
    try:
        return _search_and_show(search, folder)
    except KeyboardInterrupt:
        typer.echo(f"stopped; measurements are kept in: {folder}")
        return Answer(lambda: {"runs": str(folder)}, exit_code=130)


def read_search(request: RunRequest) -> MeasuredSearch:
    """Read and check the whole request. Raises UserError, one line, for the first mistake."""
    axis, given_bytes = _read_options(request)
    plan = run.read(request)
    name = "" if plan.sweep is None else plan.sweep.name
    planned = [item for item in plan.planned if item.trial.evidence.needs_device]
    if not planned:
        raise UserError(f"--frontier: {name} measures nothing; `zerobench plan {name} --frontier` predicts")
    cells = _cells([item.trial for item in planned if item.skipped is None], axis)
    skipped = {item.trial.trial_id: item.skipped.reason for item in planned if item.skipped is not None}
    if not cells:
        raise UserError(f"--frontier: no trial of {name} can run: {next(iter(skipped.values()))}")
    executor = run.executor_of(plan.machine, request)
    check_trials(cells.values(), executor)
    limit = _limit(given_bytes, plan.machine, cells.values())
    return MeasuredSearch(name, axis, cells, skipped, limit, plan.machine, executor)


def _read_options(request: RunRequest) -> tuple[FrontierAxis, int | None]:
    """Return the axis, and the capacity in bytes if given."""
    if request.frontier is None:
        raise UserError("--capacity needs --frontier AXIS")
    axis = frontier_axis(request.frontier)
    others = {"--resume": request.resume, "--dry-run": request.dry_run or None, "--repeats": request.repeats}
    for option, value in others.items():
        if value is not None:
            raise UserError(f"{option} does not go with --frontier: the search chooses its trials")
    given_bytes = None if request.capacity is None else parse_bytes(request.capacity, "--capacity")
    if given_bytes == 0:
        raise UserError(f"--capacity: {request.capacity!r}: must be above 0; for example 2GiB")
    return axis, given_bytes


def _limit(given_bytes: int | None, machine: Machine, cells: Iterable[TrialSpec]) -> Limit:
    on_gpu = machine.accelerator is Accelerator.CUDA
    if given_bytes is None:
        if on_gpu and machine.device_memory_bytes is not None:
            return Limit(machine.device_memory_bytes, is_given=False)
        why = "GPU memory unknown to the driver" if on_gpu else "CPU ranks have no device limit"
        raise UserError(f"--capacity is missing: {why}; give the limit per rank, for example --capacity 2GiB")
    ranks = 1 if on_gpu else max(1 if trial.evidence.plays_one_rank else trial.gpus_per_node for trial in cells)
    total_bytes = machine.device_memory_bytes if on_gpu else machine.host_memory_bytes
    if total_bytes is not None and ranks * given_bytes > total_bytes:
        each = f"{ranks} ranks of {format_bytes(given_bytes)}" if ranks > 1 else format_bytes(given_bytes)
        where = "the GPU" if on_gpu else "the machine"
        raise UserError(f"--capacity: {each} are more than {where} has: {format_bytes(total_bytes)}")
    return Limit(given_bytes, is_given=True)


def _cells(trials: Iterable[TrialSpec], axis: FrontierAxis) -> dict[str, TrialSpec]:
    """Build one cell for trials that differ only in the axis, the repeat and the batch ramp, named without the axis."""
    cells_by_hash: dict[str, TrialSpec] = {}
    # Measured trials come first and take the cell: what real ranks can measure is not searched solo.
    for trial in sorted(trials, key=lambda trial: trial.evidence is not Evidence.MEASURED):
        axis.start(trial)  # a model that does not say how deep it is is refused before anything is written
        # Without the ramp: the full batch is what must fit.
        cell = trial.model_copy(update={"steps": TRY_STEPS, "repeat": 0, "batch_ramp": None})
        cells_by_hash.setdefault(axis.trial_at(cell, 1).config_hash, cell)
    cells = list(cells_by_hash.values())
    named = cells if axis.name == "model" else [axis.trial_at(trial, 1) for trial in cells]
    return dict(zip(labels(named), cells, strict=True))


def _search_and_show(search: MeasuredSearch, folder: Path) -> Answer:
    view = screen()
    for trial_id, reason in search.skipped.items():
        view.say(f"  skipped {trial_id}: {reason}")
    predicted = predicted_first(search, folder / "predicted", prediction_view(), view.say)
    answer = measured(search, predicted, folder / "measured", view, view.say)
    rows = run_frontier_rows(search, predicted, answer)
    document = frontier_document(search, rows)
    write_whole(folder / "frontier.json", json.dumps(document, indent=1))
    with refuse_impossible_values(folder):
        print_parts([run_frontier_table(search.axis, rows, search.limit, search.device, screen_width())])
    for label, reason in answer.given_up.items():
        view.say(f"no answer: {label}: {reason}")
    typer.echo(f"Runs: {folder}")
    exit_code = 0 if len(answer.frontiers) == len(search.cells) else 1
    return Answer(lambda: {"runs": str(folder), **document}, exit_code=exit_code)
