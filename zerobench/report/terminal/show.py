"""`zerobench show`: a run in the terminal, on 80 columns or 140, each table with a line that says how to read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.text import Text

from zerobench import store
from zerobench.collection import no_collection
from zerobench.report.column_units import plain
from zerobench.report.energy import energies
from zerobench.report.environment_facts import predicted_with
from zerobench.report.labels import labels, shared_lines
from zerobench.report.node_facts import node_lines
from zerobench.report.nodes import node_name
from zerobench.report.parity import ParityJudge
from zerobench.report.pipeline import stages
from zerobench.report.predictions.predicted import join
from zerobench.report.render.terminal import part_section, sections
from zerobench.report.server import sides
from zerobench.report.tables.batch_ramp import batch_ramp_table
from zerobench.report.tables.checkpoints import checkpoints_table
from zerobench.report.tables.compared import claims_part, compared_table
from zerobench.report.tables.pipeline import pipeline_table
from zerobench.report.tables.predictions import predicted_parts
from zerobench.report.tables.server import server_table
from zerobench.report.terminal.layout import Section, Shown, listed
from zerobench.report.terminal.lines import compared_rows, of_batches, of_checkpoints, of_each
from zerobench.report.terminal.memory_tables import memory_sections
from zerobench.report.terminal.nvml_tables import nvml_sections
from zerobench.report.terminal.outcome_tables import disbelieved, notes_sections, outcome_sections, parity_sections
from zerobench.report.terminal.speed_tables import speed_sections
from zerobench.report.terminal.states_tables import composition_lines, states_sections
from zerobench.report.terminal.watched_tables import watched_sections
from zerobench.report.trials import Trial, ended_trials, refusing_impossible_values
from zerobench.spec.trial import Evidence

MOST_TRIALS = 30
"""Trials that tables show unless asked for more: what a person reads; the files hold all."""


def show_run(path: Path, console: Console, most_trials: int = MOST_TRIALS) -> None:
    """Print the tables of the run in folder `path`, of its first `most_trials` trials.

    Only what is shown is read, so the tables of a run of a thousand trials stand within a second.

    Raises:
        UserError: `path` is no run, or a record that is shown is torn, corrupt or newer than this version.

    """
    run = store.load_run(path)
    trials = list(ended_trials(run))
    with refusing_impossible_values(run.folder.trials), no_collection():
        sections = _report(run, trials, trials[:most_trials], console.width)
    if len(trials) > most_trials:
        more = f"{len(trials) - most_trials} more trials"
        sections.append(Section(more, f"In {plain(str(run.folder.path))}: trials.csv, memory.csv."))
    _print(sections, console)


def _report(run: store.Run, trials: Sequence[Trial], head: Sequence[Trial], width: int) -> list[Section]:
    """The header of the whole run, then the tables of the trials in `head`."""
    specs = [trial.spec for trial in trials]
    judge, names = ParityJudge(trials), labels(specs)
    shown = [Shown(trial, name, judge.judge(trial)) for trial, name in zip(head, names, strict=False)]
    predicted = _predicted(trials, head, names, judge, width)
    return [_header(run, trials, shown, shared_lines(specs)), *_sections(shown, predicted, energies(run), width)]


def _predicted(
    trials: Sequence[Trial], head: Sequence[Trial], names: Sequence[str], judge: ParityJudge, width: int
) -> Iterator[Section]:
    """Predictions of the work of `head`; a run that was all measured has none, and is not searched for them."""
    if all(trial.spec.evidence is Evidence.MEASURED for trial in trials):
        return iter(())
    work = {trial.spec.config_hash for trial in head}
    pairs = join((trial for trial in trials if trial.spec.config_hash in work), judge)
    by_id = {trial.spec.trial_id: name for trial, name in zip(trials, names, strict=True)}
    return (part_section(part, width) for part in predicted_parts(pairs, by_id, width))


def _sections(
    shown: Sequence[Shown], predicted: Iterable[Section], joules: Mapping[str, float], width: int
) -> Iterator[Section]:
    yield from memory_sections(shown, width)
    yield from predicted
    yield from states_sections(shown, width)
    yield from nvml_sections(shown, width)
    yield from watched_sections(shown, width)
    yield from speed_sections(shown, joules, width)
    yield from sections(batch_ramp_table(of_batches(shown)), width)
    yield from sections(server_table(of_each(shown, sides)), width)
    yield from sections(checkpoints_table(of_checkpoints(shown)), width)
    yield from sections(pipeline_table(of_each(shown, stages)), width)
    rows = compared_rows(shown)
    yield from sections(compared_table(rows), width)
    yield from (part_section(part, width) for part in claims_part(rows))
    yield from parity_sections(shown, width)
    yield from outcome_sections(shown, width)
    yield from notes_sections(shown)


def _print(sections: Sequence[Section], console: Console) -> None:
    """Print the sections; where the terminal lacks a character, with a question mark in its place."""
    encoding = console.encoding
    with nullcontext() if encoding.startswith("utf") else console.capture() as capture:
        for section in sections:
            section.print(console)
    if capture is not None:
        console.file.write(capture.get().encode(encoding, "replace").decode(encoding))


def _header(run: store.Run, trials: Sequence[Trial], shown: Sequence[Shown], shared: Sequence[str]) -> Section:
    """Which run, how its trials ended, what they have in common, and which of them are not to be believed."""
    counts = Counter(trial.record.status.value for trial in trials)
    ended = [f"{count} {status.replace('_', ' ')}" for status, count in counts.most_common()]
    num_pending = len(run.plan.trials) - len(trials)
    pending = [f"{num_pending} not ended"] if num_pending else []
    total = f"{len(run.plan.trials)} trials: {', '.join([*ended, *pending])}"
    engine = predicted_with(run.environment, (one.trial.spec for one in shown))
    lines = [Text(line) for line in (*shared, *_devices(shown), *engine, *composition_lines(shown))]
    nodes = [Text(line) for line in node_lines(run)]
    return Section(f"Run {plain(run.run_id)}", total, lines=[*lines, *nodes, *disbelieved(shown)])


def _devices(shown: Sequence[Shown]) -> list[str]:
    """The devices and hosts that ranks ran on; a processor is not counted, since ranks share it."""
    ranks = [(rank, node_name(one.trial, rank)) for one in shown for rank in one.trial.ranks]
    devices = {(rank.device_name, node, rank.device_uuid) for rank, node in ranks}
    counts = Counter(name for name, _, uuid in devices if uuid)
    names = [f"{count} x {plain(name)}" for name, count in sorted(counts.items())]
    names += sorted({plain(name) for name, _, uuid in devices if not uuid})
    hosts = sorted({plain(node) for _, node in ranks})
    return [f"on: {listed(names)}; {'hosts' if len(hosts) > 1 else 'host'} {listed(hosts)}"] if ranks else []
