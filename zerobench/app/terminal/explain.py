"""The work of `zerobench explain`: find the trials, or read the log, print topics or JSON."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zerobench.app.search.changes import changes_of_file, cluster_of, predict_changes
from zerobench.app.search.changes_on_cpu import changes_on_cpu, judged_on_cpu, runs_on_cpu, unchanged_on_cpu
from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.terminal.answer import Answer
from zerobench.app.terminal.live_predictions import prediction_view
from zerobench.app.terminal.requests import ExplainRequest
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.config.derived.cluster import Cluster
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.time.predicted_speed import work_of
from zerobench.records import store
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
from zerobench.report.explain.topic import Topic, as_data, as_text, in_brief, says
from zerobench.report.explain.trial import explain as topics_of
from zerobench.report.explain.what_if import what_if_topic
from zerobench.report.figures.environment_facts import Environment, cores_of_node, memory_of_node, versions
from zerobench.report.figures.notes import listed

_WIDTHS = (40, 100)
"""Columns of a line: no wider than people read, however wide the terminal is."""


_OF_LOGS = (
    *("model", "ds_config", "gpus", "gpu", "micro_batch", "gradient_accumulation", "sequence_length"),
    *("activation_checkpointing", "lora"),
)
"""Options that say what a log's training was."""
_BESIDE = 3
"""Rows of a screen for the word about details, and for the prompt that follows."""
_MOST_LOG_BYTES = 64 * 2**20
"""Of the end of a log: what is to be explained stands there."""


def explain(run: str, asked: ExplainRequest, of_log: PlanRequest) -> Answer:
    """Why a trial of `run` took what it took, or why the other differs from it; or what a log says.

    Both trials may be given as `RUN:TRIAL`. `of_log`: what a log's training was, whose changes that fit are predicted,
    and where runs lie. Raises UserError: there is no such run or trial, or several, or the log says nothing of memory.
    """
    trial, other, what_if, reports = asked.trial, asked.other, asked.what_if, of_log.reports
    is_told = _is_told(of_log, trial)
    if other is None and ":" in run and not (reports / run).exists() and not Path(run).exists():
        (run, _, trial), other = run.rpartition(":"), trial
    if trial is None:
        if what_if is not None:
            raise UserError("--what-if: is of a trial; name it behind RUN")
        text = _log_text(run, reports)
        logged = logged_training(text)
        topics = [*explain_log(text, Path(run).name), *versions_topic(logged)]
        if is_told:
            topics += _of_file(of_log, logged)
        return _answer(topics, details=True)
    base = store.load_run(store.find_run(run, reports))
    second = None if other is None else _second(other, base, reports)
    topics = [*([] if second else _of_own_log(base, trial)), *topics_of(base, trial, second)]
    if what_if is not None:
        topics = [what_if_topic(find_trial(trial, named_trials(base)).trial, what_if)]
    named = find_trial(trial, named_trials(base)).trial
    if asked.changes:
        topics += _changes_of(named, base.environment, reports)
    elif second is None and what_if is None and _has_changes(named):
        topics.append(Topic("Changes that fit", says("With their cost in time: the same command with --changes.")))
    return _answer(topics, details=asked.details)


def _has_changes(trial: Trial) -> bool:
    """Whether it ran out of memory and can be predicted otherwise."""
    ran_out = trial.record.status in {Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY}
    return ran_out and trial.spec.zero_stage is not None and work_of(trial.spec) is not None


def _changes_of(trial: Trial, environment: Environment, reports: Path) -> list[Topic]:
    """Those of a trial of a run, on what it ran on."""
    node_bytes = memory_of_node(environment)
    if runs_on_cpu(trial):
        simulated = changes_on_cpu(trial, reports, prediction_view())
        made = judged_on_cpu(trial, simulated, node_bytes, cores_of_node(environment))
        return [
            *unchanged_on_cpu(made.unchanged, made.room),
            changes_topic(made.changes, made.cost_basis),
        ]
    on_host = trial.record.status is Status.OUT_OF_HOST_MEMORY
    return _changes(trial.spec, cluster_of(trial, node_bytes), reports, of_host=on_host)


def _changes(trial: TrialSpec, cluster: Cluster, reports: Path, *, of_host: bool) -> list[Topic]:
    """What `trial` needs by prediction, and which changes make it fit."""
    made = predict_changes(trial, cluster, reports, prediction_view(), of_host=of_host)
    return [*unchanged_topic(made.unchanged), changes_topic(made.changes)]


def _of_file(request: PlanRequest, logged: LoggedTraining) -> list[Topic]:
    """Changes of a log's training: predicted where enough is said of it, else those that its configuration allows.

    The log's word goes before the catalogue's: its GPU has what the refusal says.
    """
    told = {"of_host": logged.of_host, "has_activations": logged.has_activations}
    missing = [f"--{name}" for name in ("model", "gpus", "gpu") if getattr(request, name) is None]
    if missing and request.ds_config is not None:
        untried = changes_of_file(request.ds_config, **told)
        lines = says(*untried, f"To have each predicted, with its cost in time, add {listed(missing)}.")
        return [Topic("Changes to try (not predicted)", lines, {"untried": untried})]
    wanted = read_plan(request)
    catalogued = wanted.cluster.gpu
    gpu = catalogued.model_copy(update={"usable_memory_bytes": logged.capacity_bytes or catalogued.capacity_bytes})
    cluster = replace(wanted.cluster, gpu=gpu)
    made = predict_changes(wanted.planned[0].trial, cluster, request.reports, prediction_view(), **told)
    releases = dict(versions(store.load_run(made.run).environment))
    contradictions = contradictions_topic(logged, made.unchanged, catalogued.capacity_bytes, releases)
    return [*unchanged_topic(made.unchanged), *contradictions, changes_topic(made.changes)]


def _is_told(request: PlanRequest, trial: str | None) -> bool:
    """Whether options say what a log's training was. Raises UserError: they do not fit."""
    given = [name for name in _OF_LOGS if getattr(request, name)]
    if given and trial is not None:
        raise UserError(f"--{given[0].replace('_', '-')} applies to logs; for a trial use --changes")
    if given and request.ds_config is None:
        raise UserError("--ds-config is missing: the DeepSpeed configuration of the logged training")
    return bool(given)


def _log_text(name: str, reports: Path) -> str:
    """The end of the log in file `name`. Raises UserError: it is no file."""
    path = Path(name)
    if not path.is_file():
        run = store.find_run(name, reports)
        raise UserError(f"TRIAL is missing: a trial of {run.name} as `zerobench show` names it")
    return _end_of(path)


def _of_own_log(run: store.Run, name: str) -> list[Topic]:
    """What a crashed trial's errors say of memory, if anything: a script of one's own in which no tracker spoke leaves
    no other word of what was refused.
    """
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
        file.seek(max(0, path.stat().st_size - _MOST_LOG_BYTES))
        return file.read().decode(errors="replace")


def _answer(topics: Sequence[Topic], *, details: bool) -> Answer:
    rows = shutil.get_terminal_size((80, 24)).lines - _BESIDE
    text = as_text(topics, _width())
    brief = text if details else as_text(in_brief(topics, rows, _width()), _width())
    more = "" if brief == text else "\n\n--details for the arithmetic"
    return Answer(lambda: as_data(topics), lambda: write(brief + more))


def _second(name: str, base: store.Run, reports: Path) -> tuple[store.Run, str]:
    """The run and the name of the second trial; with a colon it is of another run."""
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
    """Print `text`; where the terminal lacks a character, a question mark in its place."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
