"""Verdict of a command, computed once, stored in its run's folder, and shown unchanged everywhere."""

from __future__ import annotations

from pydantic import Field

from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.records import Record, read_or_none


class TriedChange(Record):
    """One change, or several together, that was tried."""

    changes: list[str]
    fits: bool
    outcome: str
    """One phrase: its need, or the reason why it does not fit."""
    needed_bytes: int | None = None
    """Need of one GPU; None if not known."""
    host_node_bytes: int | None = None
    """Need of a node's memory; None if not known."""
    slower: float | None = None
    """Expected increase in step time as a share; None if not known."""


class RunVerdict(Record):
    """A verdict and its figures; None is unknown."""

    verdict: str
    """One sentence."""
    fits: bool | None
    needed_bytes: int | None = None
    """Largest need of one GPU."""
    capacity_bytes: int | None = None
    """Memory of one GPU."""
    host_needed_bytes: int | None = None
    """Largest need of one node."""
    host_capacity_bytes: int | None = None
    """Memory of one node; None if not given."""
    changes: list[TriedChange] = Field(default_factory=list)
    not_tried: str | None = None
    """Reason why no change was tried, if none could be."""
    speed: str | None = None
    """One phrase: what a step is predicted to take, and per second, with its interval; None if not known."""
    expected_step_s: float | None = None
    expected_step_low_s: float | None = None
    """Eight of ten steps lie between this and `expected_step_high_s`."""
    expected_step_high_s: float | None = None
    assumed: list[str] = Field(default_factory=list)
    """What that speed takes for granted."""

    def keep(self, run: RunFolder) -> None:
        """Write it into the run's folder. Raises OSError."""
        write_whole(run.verdict, self.model_dump_json(indent=1))


def load_verdict(run: RunFolder) -> RunVerdict | None:
    """Verdict of a run; None without one, as in older runs."""
    return read_or_none(run.verdict, RunVerdict)
