"""Tells the runner where this rank is, by a small file rewritten between phases and steps, never within them.

It imports no torch: the first word is said before anything heavy can go wrong.
"""

from __future__ import annotations

import time

from zerobench.folder import TrialFolder, write_whole
from zerobench.progress import Progress
from zerobench.worker.launched import Rank

_SHORTEST_PAUSE_S = 0.25


class ProgressFile:
    """The progress file of one rank."""

    def __init__(self, folder: TrialFolder, rank: Rank, num_steps: int) -> None:
        self._folder = folder
        self._rank = rank
        self._num_steps = num_steps
        self._written_at = 0.0

    def say(self, phase: str, step_index: int, memory_bytes: int | None = None, *, always: bool = False) -> None:
        """Write where we are; calls that follow too closely are dropped unless `always`."""
        now = time.monotonic()
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
            memory_bytes=memory_bytes,
            updated_at_s=time.time(),
        )
        write_whole(self._folder.progress(self._rank.rank), progress.model_dump_json())
