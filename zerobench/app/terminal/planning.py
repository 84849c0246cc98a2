"""`zerobench plan` and `tune`: predict, print, and write the recommended configuration."""

from __future__ import annotations

import io
import json
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from zerobench.app.search.measured_best import check_measurable, measure_best
from zerobench.app.search.outcome import outcome
from zerobench.app.search.plan import Plan, read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.search.predicted import frontier_rows, plan_frontiers
from zerobench.app.terminal.answer import Answer, shortest
from zerobench.app.terminal.live import screen
from zerobench.app.terminal.live_predictions import ANSWERS, prediction_view
from zerobench.app.terminal.run import notes_of
from zerobench.common.errors import UserError, unknown_choice
from zerobench.config.deepspeed.written import training_arguments, written_config
from zerobench.config.derived.frontier_axes import FrontierAxis, frontier_axis
from zerobench.config.derived.training import read_training
from zerobench.config.trial.recomputation import checkpointing_code
from zerobench.config.trial.trial import Offload, slug
from zerobench.launch.machine.this_machine import detect_machine
from zerobench.launch.run.runner import RunResult
from zerobench.records.folder import write_whole, writing
from zerobench.records.store import STAMP
from zerobench.report.documents.document import configuration_values, decision_values, plan_document
from zerobench.report.documents.terminal import Console, print_parts, screen_width
from zerobench.report.documents.view import PlanView, plan_view
from zerobench.report.figures.software import releases
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Table
from zerobench.report.tables.part import Part
from zerobench.report.tables.plan_answer import shortened
from zerobench.report.tables.plan_frontier import FrontierRow, frontier_part
from zerobench.report.words.labels import setting_text

_TRAINER = "trainer"
_SEARCH = "search.json"


def plan(request: PlanRequest) -> Answer:
    """Predict the requested configurations; exit status 1 if none fits or a trial failed."""
    if request.write_for not in {None, _TRAINER}:
        raise unknown_choice("--for", request.write_for, [_TRAINER])
    if request.tunes and request.global_batch is None and request.tokens_per_step is None:
        raise UserError("--global-batch is missing: sequences per step (or --tokens-per-step)")
    training = read_training(request.tokens, request.price)
    requested = read_plan(request)
    if request.frontier is not None:
        return _frontier(requested, frontier_axis(request.frontier), request.reports)
    machine = None if request.measure is None else detect_machine()
    if machine is not None:
        check_measurable(requested.cluster, machine)
    solution = outcome(requested, request.reports, prediction_view())
    result, search, proved = solution.result, solution.search, None
    if result.interrupted:
        return Answer(lambda: {"run": str(result.folder.path)}, exit_code=result.exit_code)
    if search is not None and machine is not None and request.measure is not None:
        proved = measure_best(search, request.measure, machine, request.reports, screen())
        solution = solution.measured(proved)
    decision, best = solution.keep(), solution.best
    if search is not None:
        evidence = search.document(best) | ({} if proved is None else {"measured": proved.document})
        write_whole(result.folder.path / _SEARCH, json.dumps(evidence, indent=2) + "\n")
    view = plan_view(result.folder.path, requested.cluster, training, solution.decided)
    notes = [*([requested.world.note] if requested.world.note else []), *notes_of(requested.planned)]
    written = None if best is None else _written(result, best, request)

    def show() -> None:
        measured = (
            () if proved is None else (f"Measured on {proved.device}:", *(f"  {row.text}" for row in proved.rows))
        )
        more = "" if request.details else "; --details for the reasons"
        last = [
            *measured,
            *(f"note: {note}" for note in notes),
            *(f"{line[0].upper()}{line[1:]}." for line in view.software),
            *_written_lines(best, request),
            f"Run: {shortest(result.folder.path)}{more}",
        ]
        _show(view, _next(best, written, request), last, details=request.details)

    def document() -> dict[str, Any]:
        if requested.varied is None:
            known = plan_document(result.folder.path, requested.cluster, solution.decided, decision, training)
            return {**known, "notes": notes}
        return {
            "run": str(result.folder.path),
            **decision_values(decision),
            "ds_config": None if written is None else str(written),
            "configurations": [configuration_values(row, requested.cluster, training) for row in solution.decided.rows],
            "versions": releases(row.trial for row in solution.decided.rows),
            "search": str(result.folder.path / _SEARCH),
            "measured": None if proved is None else proved.document,
            "notes": notes,
        }

    return Answer(document, show, 1 if best is None or set(result.statuses) - ANSWERS else 0)


def _show(view: PlanView, next_step: Sequence[str], last: Sequence[str], *, details: bool) -> None:
    """Print the answer, then as much of the table as leaves the answer on the terminal's screen."""
    console = Console(highlight=False)
    if view.answer is None or view.table is None:
        print_parts([*view.details, Part("", text=last)], console)
        return
    if details:
        print_parts(view.details, console)
    head, table = view.answer.with_next(next_step, last), view.table
    if console.is_terminal and not details:
        room = console.height - _height(head, console) - 1  # the prompt comes below
        candidates = [table, *(shortened(table, most) for most in range(len(table.lines) - 1, 0, -1))]
        table = next((candidate for candidate in candidates if _height(candidate, console) <= room), candidates[-1])
    print_parts([head, table], console)


def _height(part: Part | Table[TrialFigures], console: Console) -> int:
    """Lines that it takes there."""
    text = io.StringIO()
    print_parts([part], Console(file=text, width=console.width))
    return text.getvalue().count("\n")


def _next(best: TrialFigures | None, written: Path | None, request: PlanRequest) -> list[str]:
    """Next steps: the command or call that uses the configuration, and the line of code it needs."""
    if best is None:
        return []
    spec, lines = best.spec, []
    if written is not None and request.write_for:
        arguments = [*training_arguments(spec).split(", "), f'deepspeed="{written}"']
        lines += _call_in_width("Next: ", "TrainingArguments", arguments)
    elif written is not None:
        head, tail = "Next: deepspeed train.py ", f"--deepspeed_config {written}"
        # On a narrow terminal two lines, which a shell still reads as one.
        lines += [head + tail] if len(head + tail) <= screen_width() else [f"{head}\\", f"    {tail}"]
    if spec.activation_checkpointing:
        lines.append(f"In your script: {checkpointing_code(spec.activation_checkpointing)}")
    if request.tunes and spec.ds_config:  # names have two of them at most
        keys = [f"{key.removeprefix('zero_optimization.')} {setting_text(spec, key)}" for key in spec.ds_config]
        lines.append(f"Set: {', '.join(keys)}")
    return lines


def _call_in_width(lead: str, function: str, arguments: Sequence[str]) -> list[str]:
    """Return the call in one line, or its arguments wrapped to the terminal's width."""
    whole = f"{lead}{function}({', '.join(arguments)})"
    if len(whole) <= screen_width():
        return [whole]
    kept = ", ".join(argument.replace(" ", "\xa0") for argument in arguments)  # no line breaks within one
    lines = textwrap.wrap(f"{kept})", screen_width() - 4, break_long_words=False, break_on_hyphens=False)
    return [f"{lead}{function}(", *(f"    {line}".replace("\xa0", " ") for line in lines)]


def _frontier(requested: Plan, axis: FrontierAxis, reports: Path) -> Answer:
    """Predict the frontier along `axis` into one folder; exit status 1 if a prediction failed."""
    folder = reports / f"{slug(requested.name)}-frontier-{axis.name}_{time.strftime(STAMP)}"
    answer = plan_frontiers(requested, axis, folder, prediction_view())
    rows = frontier_rows(requested, answer)

    def show() -> None:
        print_parts([frontier_part(axis, rows, requested.cluster)])
        for name, reason in answer.given_up.items():
            typer.echo(f"no answer: {name}: {reason}")
        typer.echo(f"Runs: {folder}")

    def document() -> dict[str, Any]:
        return {
            "runs": str(folder),
            "axis": axis.name,
            "frontier": [_edge(axis, row) for row in rows],
            "given_up": answer.given_up,
        }

    return Answer(document, show, 1 if answer.given_up else 0)


def _edge(axis: FrontierAxis, row: FrontierRow) -> dict[str, Any]:
    """Frontier of one configuration in units of the axis."""
    edges = {"largest": row.frontier.largest, "too_large": row.frontier.too_large}
    return {
        "configuration": row.label,
        **{name: None if edge is None else edge.value * axis.unit for name, edge in edges.items()},
        "needed_bytes": None if row.row is None else row.row.device.needed_bytes,
    }


def _written(result: RunResult, best: TrialFigures, request: PlanRequest) -> Path | None:
    """Write the recommended configuration for DeepSpeed to `--write`, else into the run's folder; return its path."""
    spec = best.spec
    if spec.zero_stage is None:
        return None
    path = request.write or shortest(result.folder.path / "ds_config.json")
    config = written_config(spec, for_trainer=request.write_for is not None)
    with writing(f"--write: {path}"):
        write_whole(path, json.dumps(config, indent=2) + "\n")
    return path


def _written_lines(best: TrialFigures | None, request: PlanRequest) -> Iterator[str]:
    """Confirm what `--write` wrote, and name the setting still to be filled in."""
    if best is None or best.spec.zero_stage is None or request.write is None:
        return
    spec = best.spec
    yield f"written: {request.write}, the configuration of {best.label}"
    if Offload.NVME in spec.offloaded_to:
        yield "set its nvme_path to a folder on your NVMe drive"
