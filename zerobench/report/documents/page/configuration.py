"""Documents to read and to copy: what was run, exactly, and what failures left of themselves.

The sweep's YAML, each trial as asked, the config passed to DeepSpeed and what it made of it, tracebacks and stacks.
Documents of the first trials stand in full; a page of a thousand trials says where the others' lie.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import yaml

from zerobench.common.redaction import redact_text
from zerobench.records import store
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Failure, RankRecord, TrialRecord
from zerobench.report.figures.run.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.tables.grid import Grid, grid
from zerobench.report.tables.model import Column
from zerobench.report.words.visible import visible

MOST_IN_FULL = 20
"""Trials whose documents are in the page, some 20 kB each, and failures whose output is."""
_MOST_CHARACTERS = 20_000
"""Length of one traceback; its end has the error."""


@dataclass(frozen=True)
class Block:
    """A document to read and to copy."""

    key: str
    """Its id in the page."""
    title: str
    text: str


def sweep_blocks(runs: Sequence[store.Run]) -> list[Block]:
    """Each run's sweep file, as it lies in the run's folder."""
    return [
        Block(f"sweep-{index}", f"{run.run_id}/{run.folder.sweep.name}", _sweep_text(run))
        for index, run in enumerate(runs, start=1)
    ]


def _sweep_text(run: store.Run) -> str:
    """The file's own text; written anew where a character in it cannot be seen, which YAML escapes in its own way."""
    text = _read(run.folder.sweep)
    return text if visible(text) == text else redact_text(yaml.safe_dump(run.sweep, sort_keys=False))


def configurations(runs: RunFigures) -> Iterator[tuple[str, list[Block]]]:
    """The first trials' labels and documents.

    Raises UserError: a rank's record is torn, corrupt or newer than this version.
    """
    for index, trial in enumerate(runs.figures[:MOST_IN_FULL], start=1):
        folder = runs.run(trial.run_id).folder.trial(trial.trial_id)
        yield trial.label, list(_blocks(f"trial-{index}", trial, folder))


def _blocks(key: str, trial: TrialFigures, folder: TrialFolder) -> Iterator[Block]:
    where = f"{trial.run_id}/{folder.path.parent.name}/{folder.path.name}"
    for path, what in ((folder.spec, "trial specification"), (folder.ds_config, "passed to DeepSpeed")):
        if path.exists():
            yield Block(f"{key}-{path.stem}", f"{what}: {where}/{path.name}", _read(path))
    for record in folder.rank_records()[:1]:
        config = store.read_record(record, RankRecord).effective_config
        if config:
            text = redact_text(json.dumps(config, indent=1))
            yield Block(f"{key}-effective", "effective engine configuration", text)


def _read(path: Path) -> str:
    return redact_text(path.read_text(encoding="utf-8", errors="replace"))


def more_grid(trials: Sequence[TrialFigures]) -> Grid:
    """Paths of the documents of the trials that are not in the page."""
    columns: list[Column[TrialFigures]] = [
        Column("trial", lambda trial: trial.label, is_text=True),
        Column("folder", lambda trial: f"{trial.run_id}/trials/{trial.trial_id}/", is_text=True),
    ]
    return grid("Trials whose files are only in the run folder.", columns, trials[MOST_IN_FULL:])


def note(num_trials: int) -> str:
    """Sentence on which trials are in the page."""
    rest = num_trials - MOST_IN_FULL
    if rest <= 0:
        return "Each trial's spec, DeepSpeed config and effective engine configuration."
    return (
        f"Spec, DeepSpeed config and effective engine configuration of the first {MOST_IN_FULL} trials; "
        f"the table below gives the files of the other {rest:,}."
    )


def evidence_blocks(runs: RunFigures, failed: Sequence[TrialFigures]) -> Iterator[Block]:
    """The tracebacks and stacks of the first failures that left any."""
    # Read again: of a hundred thousand failures the page has twenty.
    records = ((trial, runs.run(trial.run_id).folder.trial(trial.trial_id).record) for trial in failed)
    read = ((trial, _output(store.read_record(path, TrialRecord).failure)) for trial, path in records)
    outputs = ((trial, text) for trial, text in read if text)
    for index, (trial, text) in enumerate(islice(outputs, MOST_IN_FULL), start=1):
        yield Block(f"failure-{index}", f"{trial.label}: output", text[-_MOST_CHARACTERS:])


def _output(failure: Failure | None) -> str:
    if failure is None:
        return ""
    parts = [failure.evidence or "", failure.traceback or ""]
    parts += [f"rank {rank}:\n{stack}" for rank, stack in failure.stacks.items()]
    return "\n\n".join(part.strip("\n") for part in parts if part)
