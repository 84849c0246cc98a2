"""What a rank says of itself while it runs, for the runner's live view and for it to know a hang by (`timeout_s`).

A small file rewritten between phases and steps, never within them. It imports no torch: the first word is said before
anything heavy can go wrong.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import HostStanding, read_or_none

_SHORTEST_PAUSE_S = 0.25


class Progress(BaseModel):
    """Rewritten by each rank as it goes (folder.TrialFolder.progress)."""

    rank: int
    pid: int
    hostname: str
    phase: str
    """`import`, `compile`, `join`, `init`, `training`, then each step's kind (`first`, `warmup`, `timed`, ...), `save`,
    `done`."""
    step_index: int
    num_steps: int
    memory_bytes: int | None
    """Of the device as torch's allocator has it now; of the process on a CPU."""
    updated_at_s: float
    local_rank: int | None = None
    device_name: str | None = None
    capacity_bytes: int | None = None
    """Of the device's memory; None on a CPU."""
    peak_by_category: dict[str, int] = {}
    """Device bytes at the peak of what the ledger accounted for last: start-up, the first step, a steady one."""
    host_standing: HostStanding | None = None
    """What it held of the host at the peak of the phase that the ledger accounted for last: where the kernel kills the
    rank, all that is known."""
    tokens_per_s: float | None = None
    """Over all ranks, by the time that this one took for its last timed step."""


def read_progress(path: Path) -> Progress | None:
    """A rank's latest word; None where it has said none, or is just saying one."""
    return read_or_none(path, Progress)


@dataclass(frozen=True)
class Rank:
    """Who this process is among its peers, as its launcher said."""

    rank: int
    local_rank: int
    world_size: int
    hostname: str
    pid: int
    node: int = 0
    """Index of its node within the trial; hostnames may be equal or wrong."""


class ProgressFile:
    """The progress file of one rank."""

    def __init__(self, folder: TrialFolder, rank: Rank, num_steps: int) -> None:
        self._folder = folder
        self._rank = rank
        self._num_steps = num_steps
        self._written_at = 0.0
        self._last_word = ("import", -1)
        self._memory_bytes: int | None = None
        self.device_name: str | None = None
        """This and what follows is known only later; it goes out with the next word."""
        self.capacity_bytes: int | None = None
        self.peak_by_category: dict[str, int] = {}
        self.tokens_per_s: float | None = None
        self._host_standing: HostStanding | None = None

    def tell_host(self, standing: HostStanding) -> None:
        """Say at once what the host holds, with the last word again: the next phase may be the one that is killed."""
        self._host_standing = standing
        self.say(*self._last_word, always=True)

    def say(self, phase: str, step_index: int, memory_bytes: int | None = None, *, always: bool = False) -> None:
        """Write where we are; calls that follow too closely are dropped unless `always`."""
        now = time.monotonic()
        self._last_word = (phase, step_index)
        self._memory_bytes = memory_bytes or self._memory_bytes
        if not always and now - self._written_at < _SHORTEST_PAUSE_S:
            return
        self._written_at = now
        progress = Progress(
            rank=self._rank.rank,
            pid=self._rank.pid,
            hostname=self._rank.hostname,
            phase=phase,
            step_index=step_index,
            num_steps=self._num_steps,
            memory_bytes=self._memory_bytes,
            updated_at_s=time.time(),
            local_rank=self._rank.local_rank,
            device_name=self.device_name,
            capacity_bytes=self.capacity_bytes,
            peak_by_category=self.peak_by_category,
            host_standing=self._host_standing,
            tokens_per_s=self.tokens_per_s,
        )
        write_whole(self._folder.progress(self._rank.rank), progress.model_dump_json())
