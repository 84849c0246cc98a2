"""Sentences and tables of the verdict that a run keeps, the same in the terminal, on the page and in Markdown."""

from collections.abc import Iterator, Sequence

from zerobench.records import store
from zerobench.records.verdict import RunVerdict, TriedChange, load_verdict

CHANGES = "Changes, each emulated"


def verdict_of(runs: Sequence[store.Run]) -> RunVerdict | None:
    """The verdict of the only run; None for several, each with a command of its own."""
    return load_verdict(runs[0].folder) if len(runs) == 1 else None


def verdict_sentences(told: RunVerdict) -> Iterator[str]:
    """The verdict, then what was tried, a sentence for each change."""
    yield told.verdict
    if told.speed is not None:
        yield f"Speed: {told.speed}."
    if told.not_tried is not None:
        yield f"No changes tried: {told.not_tried}."
    if told.changes:
        yield f"{CHANGES}: {'; '.join(change_line(change) for change in told.changes)}."


def change_line(change: TriedChange) -> str:
    """`micro batch 1 instead of 4: fits, 58.10 GiB per GPU, 9% slower`."""
    return f"{', '.join(change.changes)}: {change.outcome}"
