"""What failures left of themselves: tracebacks and stacks, as blocks to read and to copy."""

from collections.abc import Iterator, Sequence
from itertools import islice

from zerobench import store
from zerobench.records import Failure, TrialRecord
from zerobench.report.figures.runs import RunFigures
from zerobench.report.figures.trial import TrialFigures
from zerobench.report.page.configuration import Block
from zerobench.report.render.visible import visible

MOST_EVIDENCE = 20
"""Failures whose traceback or stacks are in the page."""
_MOST_CHARACTERS = 20_000
"""Of one traceback; the end says what happened."""


def evidence_blocks(runs: RunFigures, failed: Sequence[TrialFigures]) -> Iterator[Block]:
    """The tracebacks and stacks of the first failures that left any."""
    # Read again: of a hundred thousand failures the page has twenty.
    records = ((trial, runs.run(trial.run_id).folder.trial(trial.trial_id).record) for trial in failed)
    read = ((trial, _output(store.read_record(path, TrialRecord).failure)) for trial, path in records)
    outputs = ((trial, text) for trial, text in read if text)
    for index, (trial, text) in enumerate(islice(outputs, MOST_EVIDENCE), start=1):
        yield Block(f"failure-{index}", visible(f"{trial.label}: output"), visible(text[-_MOST_CHARACTERS:]))


def _output(failure: Failure | None) -> str:
    if failure is None:
        return ""
    parts = [failure.evidence or "", failure.traceback or ""]
    parts += [f"rank {rank}:\n{stack}" for rank, stack in failure.stacks.items()]
    return "\n\n".join(part.strip("\n") for part in parts if part)
