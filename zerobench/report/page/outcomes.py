"""The trials that have no figures, each with its reason; what a crash or a hang left is one click away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerobench import store
from zerobench.records import Failure, Status, TrialRecord
from zerobench.report.evidence import evidence_text
from zerobench.report.page.configuration import Block
from zerobench.report.page.trials import Trial, counted, is_predicted, status_text
from zerobench.report.render.grid import Column, Grid, grid
from zerobench.report.render.visible import visible
from zerobench.report.terminal.outcome_tables import why
from zerobench.units import format_seconds

MOST_EVIDENCE = 20
"""Failures whose traceback or stacks are in the page."""
_MOST_CHARACTERS = 20_000
"""Of one traceback; the end says what happened."""

Failed = tuple[Trial, TrialRecord]


def failed_trials(runs: Sequence[store.Run], trials: Sequence[Trial]) -> list[Failed]:
    """The trials that did not complete, skipped ones included, with what their records say of it."""
    by_id = {run.run_id: run for run in runs}
    failed = [trial for trial in trials if trial["status"] != Status.COMPLETED.value]
    paths = [by_id[trial["run_id"]].folder.trial(trial["trial_id"]).record for trial in failed]
    return [(trial, store.read_record(path, TrialRecord)) for trial, path in zip(failed, paths, strict=True)]


def outcomes_grid(failed: Sequence[Failed]) -> Grid:
    """Each with how it ended, after how long, and why."""
    all_measured = not any(is_predicted(trial) for trial, _ in failed)
    columns: list[Column[Failed]] = [
        Column("trial", lambda one: str(one[0]["label"]), is_number=False),
        Column("ended", lambda one: status_text(one[0]["status"]), is_number=False),
        Column(
            "was to be",
            lambda one: "" if all_measured else evidence_text(one[0]["evidence"], one[0]["gpu"]),
            is_number=False,
        ),
        Column("after", lambda one: _duration(one[1])),
        Column("Slurm job", lambda one: one[1].job or "", is_number=False),
        Column("why", lambda one: why(one[1]), is_number=False),
    ]
    caption = "A skipped trial was not started, and names the rule that it breaks."
    return grid(caption, columns, failed)


def _duration(record: TrialRecord) -> str:
    known = record.started_at_s is not None and record.ended_at_s is not None
    return format_seconds((record.ended_at_s or 0) - (record.started_at_s or 0) if known else None)


def outcome_counts(failed: Sequence[Failed]) -> str:
    """How many ended in which way."""
    return f"{len(failed):,} of the trials above: {counted([status_text(trial['status']) for trial, _ in failed])}."


def evidence_blocks(failed: Sequence[Failed]) -> Iterator[Block]:
    """The tracebacks and stacks of the first failures that left any."""
    told = [(trial, text) for trial, record in failed if (text := _told(record.failure))]
    for index, (trial, text) in enumerate(told[:MOST_EVIDENCE], start=1):
        yield Block(f"failure-{index}", visible(f"{trial['label']}: what it left"), visible(text[-_MOST_CHARACTERS:]))


def _told(failure: Failure | None) -> str:
    if failure is None:
        return ""
    parts = [failure.evidence or "", failure.traceback or ""]
    parts += [f"rank {rank}:\n{stack}" for rank, stack in failure.stacks.items()]
    return "\n\n".join(part.strip("\n") for part in parts if part)
