"""`zerobench explain`: find the trials or read the log, print topics or JSON."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zerobench.app.search.changes import changes_of_file, cluster_of, predict_changes
from zerobench.app.search.changes_on_cpu import changes_on_cpu, judged_on_cpu, runs_on_cpu, unchanged_on_cpu
from zerobench.app.search.closed_forms import ClosedForms
from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.terminal.answer import Answer
from zerobench.app.terminal.live_predictions import prediction_view
from zerobench.app.terminal.requests import ExplainRequest
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Place, Status, StepKind
from zerobench.config.deepspeed.own_work import work_of
from zerobench.records import store
from zerobench.records.instants import largest_peak
from zerobench.records.trials import Trial
from zerobench.report.explain.changes import changes_topic, unchanged_topic
from zerobench.report.explain.find import find_trial, named_trials
from zerobench.report.explain.log import explain_log
from zerobench.report.explain.logged import (
    LoggedTraining,
    contradictions_topic,
    logged_training,
    versions_topic,
)
from zerobench.report.explain.savings import offered
from zerobench.report.explain.topic import Topic, as_data, as_text, in_brief, says
from zerobench.report.explain.trial import explain as topics_of
from zerobench.report.explain.what_if import what_if_topic
from zerobench.report.figures.environment_facts import Environment, memory_of_node, versions
from zerobench.report.figures.notes import listed

_WIDTHS = (40, 100)
"""Narrowest and widest line in columns, whatever the terminal's width."""


_LOG_OPTIONS = (
    *("model", "ds_config", "gpus", "gpu", "micro_batch", "gradient_accumulation", "sequence_length"),
    *("activation_checkpointing", "lora"),
)
"""Options that describe a log's training."""
_HINT_ROWS = 3
"""Screen rows for the hint about details and the prompt that follows."""
_LOG_TAIL_BYTES = 64 * 2**20
"""Bytes read from the end of a log, where the failure is."""


def explain(run: str, options: ExplainRequest, log: PlanRequest) -> Answer:
    """Explain the memory and time of a trial of `run`, its difference from another trial, or a log.

    Both trials may be given as `RUN:TRIAL`. `log` describes the training of a log, whose fitting changes are
    predicted, and has the folder of runs. Raises UserError if there is no such run or trial, or several, or the log
    says nothing about memory.
    """
    trial, other, what_if, reports = options.trial, options.other, options.what_if, log.reports
    is_told = _describes_log(log, trial)
    # `explain RUN:TRIAL RUN:TRIAL` puts two trials in the places of RUN and TRIAL.
    if other is None and ":" in run and not (reports / run).exists() and not Path(run).exists():
        (run, _, trial), other = run.rpartition(":"), trial
    if trial is None:
        if what_if is not None:
            raise UserError("--what-if: is of a trial; name it behind RUN")
        text = _log_text(run, reports)
        logged = logged_training(text)
        topics = [*explain_log(text, Path(run).name), *versions_topic(logged)]
        if is_told:
            topics += _log_changes(log, logged)
        return _answer(topics, details=True)
    base = store.load_run(store.find_run(run, reports))
    second = None if other is None else _second(other, base, reports)
    topics = [
        *([] if second else _stderr_topics(base, trial)),
        *topics_of(base, trial, second, estimates=ClosedForms()),
    ]
    if what_if is not None:
        topics = [what_if_topic(find_trial(trial, named_trials(base)).trial, what_if)]
    named = find_trial(trial, named_trials(base)).trial
    if options.changes:
        topics += _changes_of(named, base.environment, reports)
    elif second is None and what_if is None and _has_changes(named):
        topics.append(Topic("Changes that fit", says("With their cost in time: the same command with --changes.")))
    return _answer(topics, details=options.details)


def _has_changes(trial: Trial) -> bool:
    """Return True if the trial ran out of memory and changes to it can be predicted."""
    ran_out = trial.record.status in {Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY}
    return ran_out and trial.spec.zero_stage is not None and work_of(trial.spec) is not None


def _changes_of(trial: Trial, environment: Environment, reports: Path) -> list[Topic]:
    """Predict changes of a trial on the hardware that it ran on."""
    node_bytes = memory_of_node(environment)
    if runs_on_cpu(trial):
        simulated = changes_on_cpu(trial, reports, prediction_view())
        judged = judged_on_cpu(trial, simulated, node_bytes)
        return [*unchanged_on_cpu(judged.unchanged, judged.room), changes_topic(judged.changes)]
    on_host = trial.record.status is Status.OUT_OF_HOST_MEMORY
    seen = largest_peak(trial, StepKind.STEADY, Place.DEVICE)
    remedies = [] if seen is None else offered(trial, seen)
    cluster = cluster_of(trial, node_bytes)
    changes = predict_changes(trial.spec, cluster, reports, prediction_view(), of_host=on_host, remedies=remedies)
    return [*unchanged_topic(changes.unchanged), changes_topic(changes.changes)]


def _log_changes(request: PlanRequest, logged: LoggedTraining) -> list[Topic]:
    """Changes to a log's training: predicted if the request is complete, else those that its configuration allows.

    The GPU's capacity is the one in the log's error message; the catalogue's is the fallback.
    """
    of_host, has_activations = logged.of_host, logged.has_activations
    missing = [f"--{name}" for name in ("model", "gpus", "gpu") if getattr(request, name) is None]
    if missing and request.ds_config is not None:
        untried = changes_of_file(request.ds_config, of_host=of_host, has_activations=has_activations)
        lines = says(*untried, f"To have each predicted, with its cost in time, add {listed(missing)}.")
        return [Topic("Changes to try (not predicted)", lines, {"untried": untried})]
    plan = read_plan(request)
    # The capacity in the log's error message is the GPU's own; the catalogue's is the fallback.
    catalogued = plan.cluster.gpu
    gpu = catalogued.model_copy(update={"usable_memory_bytes": logged.capacity_bytes or catalogued.capacity_bytes})
    cluster = replace(plan.cluster, gpu=gpu)
    predicted = predict_changes(
        plan.planned[0].trial,
        cluster,
        request.reports,
        prediction_view(),
        of_host=of_host,
        has_activations=has_activations,
    )
    releases = dict(versions(store.load_run(predicted.run).environment))
    contradictions = contradictions_topic(logged, predicted.unchanged, catalogued.capacity_bytes, releases)
    return [*unchanged_topic(predicted.unchanged), *contradictions, changes_topic(predicted.changes)]


def _describes_log(request: PlanRequest, trial: str | None) -> bool:
    """Return True if options describe a log's training. Raises UserError if they do not go together."""
    given = [name for name in _LOG_OPTIONS if getattr(request, name)]
    if given and trial is not None:
        raise UserError(f"--{given[0].replace('_', '-')} applies to logs; for a trial use --changes")
    if given and request.ds_config is None:
        raise UserError("--ds-config is missing: the DeepSpeed configuration of the logged training")
    return bool(given)


def _log_text(name: str, reports: Path) -> str:
    """Read the end of the log file `name`. Raises UserError if it is not a file."""
    path = Path(name)
    if not path.is_file():
        run = store.find_run(name, reports)
        raise UserError(f"TRIAL is missing: a trial of {run.name} as `zerobench show` names it")
    return _end_of(path)


def _stderr_topics(run: store.Run, name: str) -> list[Topic]:
    """Explain the memory errors in a crashed trial's stderr, if any."""
    # Without a tracker, a user's script records its memory errors nowhere but in its own output.
    trial = find_trial(name, named_trials(run)).trial
    path = run.folder.trial(trial.trial_id).stderr
    if trial.record.status is not Status.CRASH or not path.is_file():
        return []
    try:
        return explain_log(_end_of(path), path.name)
    except UserError:
        return []


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")


def _answer(topics: Sequence[Topic], *, details: bool) -> Answer:
    # In brief only as many topics as leave the answer and the prompt on the screen.
    rows = shutil.get_terminal_size((80, 24)).lines - _HINT_ROWS
    text = as_text(topics, _width())
    brief = text if details else as_text(in_brief(topics, rows, _width()), _width())
    more = "" if brief == text else "\n\n--details for the arithmetic"
    return Answer(lambda: as_data(topics), lambda: write(brief + more))


def _second(name: str, base: store.Run, reports: Path) -> tuple[store.Run, str]:
    """Return the run and the name of the second trial; `RUN:TRIAL` names another run."""
    run, colon, trial = name.rpartition(":")
    if not colon:
        return base, name
    try:
        return store.load_run(store.find_run(run, reports)), trial
    except UserError as error:
        raise UserError(f"TRIAL: {name!r}: {error}") from None


def _width() -> int:
    low, high = _WIDTHS
    return max(low, min(high, shutil.get_terminal_size((80, 24)).columns))


def write(text: str) -> None:
    """Print `text`, with question marks for characters that the terminal's encoding lacks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
