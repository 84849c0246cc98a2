"""`zerobench show`: a run in the terminal, on 80 columns or 140, each table with a line that says how to read it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from zerobench.common.collection import no_collection
from zerobench.common.units import counted, format_count
from zerobench.config.trial.trial import Evidence
from zerobench.records import store
from zerobench.records.trials import Trial, ended_trials, num_params, parameter_counts, refuse_impossible_values
from zerobench.report.documents.terminal import Console, print_lines, rendered
from zerobench.report.documents.views import Document, in_order
from zerobench.report.explain.sentences import headline
from zerobench.report.figures.energy import energies
from zerobench.report.figures.make import trial_figures
from zerobench.report.figures.node_facts import node_lines
from zerobench.report.figures.nodes import node_name
from zerobench.report.figures.notes import each_once, listed, sentences, who_says
from zerobench.report.figures.nvml_view import nvml_missing_reason
from zerobench.report.figures.parity import ParityJudge
from zerobench.report.figures.predictions.predicted import join
from zerobench.report.figures.recovery import loss_distance
from zerobench.report.figures.run.runs import run_figures
from zerobench.report.figures.software import predicted_with
from zerobench.report.figures.strategies.rows import compare
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.model import Line, Table
from zerobench.report.tables.nvml import nvml_rows, nvml_table
from zerobench.report.tables.parity import disbelieved
from zerobench.report.tables.part import Part
from zerobench.report.tables.predictions import predicted_parts
from zerobench.report.tables.speed import speed_table
from zerobench.report.tables.strategies import claims_part, strategies_table
from zerobench.report.tables.watched import watched_rows, watched_table
from zerobench.report.words.column_units import plain
from zerobench.report.words.labels import labels, shared_lines

Shown = Part | Table[Any]
MOST_TRIALS = 30
"""Trials that tables show unless asked for more: what a person reads; the files hold all."""


def show_run(path: Path, console: Console | None = None, most_trials: int = MOST_TRIALS) -> None:
    """Print the tables of the run in folder `path`, of its first `most_trials` trials, by default on standard output.

    Only what is shown is read, so the tables of a run of a thousand trials stand within a second.

    Raises:
        UserError: `path` is no run, or a record that is shown is torn, corrupt or newer than this version.

    """
    console = console or Console(highlight=False)
    run = store.load_run(path)
    trials = list(ended_trials(run))
    with refuse_impossible_values(run.folder.trials), no_collection():
        answer = headline(run_figures([run])) if 0 < len(trials) <= most_trials else []
        parts = _report(run, trials, trials[:most_trials], [] if console.is_terminal else answer, console.width)
        if len(trials) > most_trials:
            more, folder = counted(len(trials) - most_trials, "more trial"), plain(str(run.folder.path))
            parts.append(Part(more, f"In {folder}: trials.csv, memory.csv. Summary of all: zerobench report"))
        if answer and console.is_terminal:  # what stands above the tables has left the screen when they end
            parts.append(Part("Summary", answer[0], text=answer[1:]))
        lines = rendered(parts, console.width)
    print_lines(lines, console)


def _report(
    run: store.Run, trials: Sequence[Trial], head: Sequence[Trial], answer: Sequence[str], width: int
) -> list[Shown]:
    """The header of the whole run, which opens with the `answer`, then the tables of the trials in `head`."""
    specs = [trial.spec for trial in trials]
    judge, names = ParityJudge(trials), labels(specs)
    figures = [
        trial_figures(trial).named(name, judge.judge(trial), loss_distance(trial, head))
        for trial, name in zip(head, names, strict=False)
    ]
    rows = compare(figures)
    own: Mapping[str, Iterable[Shown]] = {
        "predictions": _predicted(trials, head, names, judge, width),
        "driver": _driver(list(zip(head, figures, strict=True))),
        "speed": [speed_table(figures, energies(run))],
        "compared": [strategies_table(rows)],
        "claims": claims_part(rows),
        "notes": _notes(head, names),
    }
    tables = in_order(Document.TERMINAL, figures, own, lambda _, table: [table])
    return [_header(run, trials, head, figures, answer, shared_lines(specs)), *chain.from_iterable(tables)]


def _predicted(
    trials: Sequence[Trial], head: Sequence[Trial], names: Sequence[str], judge: ParityJudge, width: int
) -> Iterable[Part]:
    """Predictions of the work of `head`; a run that was all measured has none, and is not searched for them."""
    if all(trial.spec.evidence is Evidence.MEASURED for trial in trials):
        return ()
    work = {trial.spec.config_hash for trial in head}
    pairs = join((trial for trial in trials if trial.spec.config_hash in work), judge)
    by_id = {trial.spec.trial_id: name for trial, name in zip(trials, names, strict=True)}
    return predicted_parts(pairs, by_id, width)


def _driver(shown: Sequence[tuple[Trial, TrialFigures]]) -> Iterator[Shown]:
    """Memory by the driver, of ranks and from outside; without any, the reason if it was expected."""
    rows = [Line(figures.name, row) for trial, figures in shown for row in (nvml_rows(trial) if trial.ranks else ())]
    reasons = nvml_missing_reason(trial for trial, _ in shown if trial.ranks)
    if not rows and reasons and any(rank.device_type == "cuda" for trial, _ in shown for rank in trial.ranks):
        yield Part("NVML", f"No driver readings: {plain(listed(reasons))}.")
    yield nvml_table(rows, reasons)
    watched = [Line(figures.name, row) for trial, figures in shown for row in watched_rows(trial)]
    yield watched_table(
        watched, nvml_missing_reason(trial for trial, _ in shown if trial.record.host and not trial.ranks)
    )


def _notes(head: Sequence[Trial], names: Sequence[str]) -> Iterator[Part]:
    """Each sentence once."""
    said = ((name, sentence) for trial, name in zip(head, names, strict=False) for sentence in sentences(trial))
    if notes := each_once(said):
        caption = "Buffer sizes in elements, DeepSpeed's departures from the paper, unavailable figures."
        points = [f"{sentence} ({who_says(who, len(head), 6)})" for sentence, who in notes.items()]
        yield Part("Notes", caption, points=points)


def _header(
    run: store.Run,
    trials: Sequence[Trial],
    head: Sequence[Trial],
    figures: Sequence[TrialFigures],
    answer: Sequence[str],
    shared: Sequence[str],
) -> Part:
    """The run, outcomes of its trials, settings in common, and trials that are not to be believed."""
    counts = Counter(trial.record.status.words for trial in trials)
    ended = [f"{count} {status}" for status, count in counts.most_common()]
    num_pending = len(run.plan.trials) - len(trials)
    pending = [f"{num_pending} not ended"] if num_pending else []
    total = f"{counted(len(run.plan.trials), 'trial')}: {', '.join([*ended, *pending])}"
    engine = predicted_with(run.environment, head)
    first, *rest = [*answer, total]
    lines = [*rest, *shared, *_devices(head), *engine, *_compositions(head), *node_lines(run)]
    return Part(f"Run {plain(run.run_id)}", first, text=lines, warnings=disbelieved(figures))


def _devices(head: Sequence[Trial]) -> list[str]:
    """The devices and hosts that ranks ran on; a processor is not counted, since ranks share it."""
    ranks = [(rank, node_name(trial, rank)) for trial in head for rank in trial.ranks]
    devices = {(rank.device_name, node, rank.device_uuid) for rank, node in ranks}
    counts = Counter(name for name, _, uuid in devices if uuid)
    names = [f"{count} x {plain(name)}" for name, count in sorted(counts.items())]
    names += sorted({plain(name) for name, _, uuid in devices if not uuid})
    hosts = sorted({plain(node) for _, node in ranks})
    return [f"on: {listed(names)}; {'hosts' if len(hosts) > 1 else 'host'} {listed(hosts)}"] if ranks else []


def _compositions(head: Sequence[Trial]) -> list[str]:
    """One line for each model: its parameters, in all and by component."""
    models = {trial.spec.model.name: trial for trial in reversed(head)}
    return [line for trial in reversed(models.values()) if (line := _composition(trial))]


def _composition(trial: Trial) -> str | None:
    counts, total = parameter_counts(trial), num_params(trial)
    if counts is None or total is None:
        return None
    parts = [
        f"{name.replace('_', ' ')} {format_count(count)}" for name, count in counts.component_counts().items() if count
    ]
    return f"{plain(trial.spec.model.name)}: {total:,} parameters ({', '.join(parts)})"
