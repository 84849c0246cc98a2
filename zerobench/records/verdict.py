"""The answer of a command, made once, kept in its run's folder, and shown everywhere as it was made."""

from __future__ import annotations

from pydantic import Field

from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.records import Record, read_or_none


class TriedChange(Record):
    """One change, or several together, that was tried."""

    changes: list[str]
    fits: bool
    outcome: str
    """One phrase: what it needs, or why it does not fit."""
    needed_bytes: int | None = None
    """Of one GPU; None if not known."""
    host_node_bytes: int | None = None
    """Of a node's memory; None if not known."""
    slower: float | None = None
    """Expected increase in step time as a share; None if not known."""


class RunVerdict(Record):
    """A verdict and the numbers that it is made of; None is not known."""

    verdict: str
    """One sentence."""
    fits: bool | None
    needed_bytes: int | None = None
    """Of the GPU with the largest need."""
    capacity_bytes: int | None = None
    """Of one GPU."""
    host_needed_bytes: int | None = None
    """Of the node with the largest need."""
    host_capacity_bytes: int | None = None
    """Of one node; None if not given."""
    changes: list[TriedChange] = Field(default_factory=list)
    not_tried: str | None = None
    """Why no change was tried, if none could be."""

    def keep(self, run: RunFolder) -> None:
        """Write it into the run's folder. Raises OSError."""
        write_whole(run.verdict, self.model_dump_json(indent=1))


def kept_verdict(run: RunFolder) -> RunVerdict | None:
    """The verdict of a run; None for runs without one, as older ones are."""
    return read_or_none(run.verdict, RunVerdict)
