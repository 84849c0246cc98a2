"""Progress that a rank reports while it runs, for the runner's live view and its detection of hangs (`timeout_s`).

A small file rewritten between phases and steps, never within them. No torch is imported: the first report precedes
everything that can fail.
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
    """Rewritten by each rank during the trial (folder.TrialFolder.progress)."""

    rank: int
    pid: int
    hostname: str
    phase: str
    """`import`, `compile`, `join`, `init`, `training`, then each step's kind (`first`, `warmup`, `timed`, ...), `save`,
    `done`."""
    step_index: int
    num_steps: int
    memory_bytes: int | None
    """Current bytes of torch's allocator on the device; of the process on a CPU."""
    updated_at_s: float
    local_rank: int | None = None
    device_name: str | None = None
    capacity_bytes: int | None = None
    """Size of the device's memory; None on a CPU."""
    peak_by_category: dict[str, int] = {}
    """Device bytes at the peak of the last recorded phase: start-up, the first step, a steady one."""
    host_standing: HostStanding | None = None
    """Host memory at the peak of the last recorded phase: all that is known if the kernel kills the rank."""
    tokens_per_s: float | None = None
    """Over all ranks, from this rank's last timed step."""


def read_progress(path: Path) -> Progress | None:
    """Latest report of a rank; None without one, or while it is being written."""
    return read_or_none(path, Progress)


@dataclass(frozen=True)
class Rank:
    """Identity of this process among its peers, from its launcher."""

    rank: int
    local_rank: int
    world_size: int
    hostname: str
    pid: int
    node: int = 0
    """Index of its node within the trial; hostnames may be equal or wrong."""


class ProgressFile:
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
        """Report host memory immediately, with the last phase: the rank may be killed in the next one."""
        self._host_standing = standing
        self.say(*self._last_word, always=True)

    def say(self, phase: str, step_index: int, memory_bytes: int | None = None, *, always: bool = False) -> None:
        """Report the phase; reports that follow too closely are dropped unless `always`."""
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
