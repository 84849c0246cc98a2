"""Host memory of a command's whole process tree, sampled from outside.

Three different counts are kept apart: resident sizes (shared pages count for each process that maps them), proportional
sizes (shared pages once; the kernel walks the page tables for them, so they are read less often), and the control
group's, which includes page cache and foreign processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from zerobench.common import control_groups
from zerobench.rank.ledger.host import peak_resident_bytes, proportional_bytes
from zerobench.records.records import HostProcess, HostSummary

HEADER = "t_s,num_processes,rss_bytes,pss_bytes,group_bytes\n"
"""Unix time; the last two are empty if not read."""
PSS_INTERVAL_S = 1.0
_MOST_PROCESSES = 64
"""Processes in a summary at most."""
_RANK = "RANK"


@dataclass
class SeenProcess:
    """One process of the tree, as seen so far."""

    pid: int
    name: str
    rank: int | None
    world_size: int | None
    local_world_size: int | None
    peak_rss_bytes: int = 0
    peak_pss_bytes: int | None = None

    def record(self) -> HostProcess:
        """Return its entry in the summary."""
        return HostProcess(
            pid=self.pid,
            name=self.name,
            rank=self.rank,
            peak_rss_bytes=self.peak_rss_bytes,
            peak_pss_bytes=self.peak_pss_bytes,
        )


@dataclass
class HostTree:
    """Samples so far. `members` finds the tree's living processes."""

    hostname: str
    interval_s: float
    members: Callable[[], Sequence[psutil.Process]]
    node: int = 0
    """As in HostSummary."""
    seen: dict[tuple[int, float], SeenProcess] = field(default_factory=dict)
    """By process id and time of birth: the kernel reuses ids."""
    now_rss_bytes: int = 0
    """Resident bytes of the tree at the last sample."""
    num_samples: int = 0
    largest_gap_s: float | None = None
    _peak_rss_bytes: int | None = None
    _peak_pss_bytes: int | None = None
    _peak_group_bytes: int | None = None
    _last_s: float | None = None
    _next_pss_s: float = 0.0

    def sample(self) -> str:
        """Sample the tree once; returns the line for the file."""
        now_s = time.time()
        with_pss = now_s >= self._next_pss_s
        if with_pss:
            self._next_pss_s = now_s + PSS_INTERVAL_S
        sizes = [size for process in self.members() if (size := self._size(process, with_pss=with_pss)) is not None]
        rss = sum(size[0] for size in sizes)
        known = [size[1] for size in sizes if size[1] is not None]
        pss = sum(known) if known and len(known) == len(sizes) else None
        group = control_groups.memory_bytes()
        self._keep(now_s, rss if sizes else None, pss, group)
        return f"{now_s:.3f},{len(sizes)},{rss},{_cell(pss)},{_cell(group)}\n"

    def summary(self) -> HostSummary:
        """Summarise the samples so far."""
        ranks = self.ranks
        others = [
            replace(process, rank=None) for process in self.seen.values() if not any(process is rank for rank in ranks)
        ]
        ranked = ranks + sorted(others, key=lambda process: -process.peak_rss_bytes)
        return HostSummary(
            hostname=self.hostname,
            node=self.node,
            interval_s=self.interval_s,
            num_samples=self.num_samples,
            largest_gap_s=self.largest_gap_s,
            peak_rss_bytes=self._peak_rss_bytes,
            peak_pss_bytes=self._peak_pss_bytes,
            group_peak_bytes=self._peak_group_bytes,
            group_limit_bytes=control_groups.memory_limit_bytes(),
            processes=[process.record() for process in ranked[:_MOST_PROCESSES]],
        )

    @property
    def ranks(self) -> list[SeenProcess]:
        """One process per rank seen on this node, by rank."""
        # Shells around a rank and its children have its RANK too: the rank is the process that held most.
        smallest_first = sorted([*self.seen.values()], key=lambda process: process.peak_rss_bytes)
        by_rank = {process.rank: process for process in smallest_first if process.rank is not None}
        return [by_rank[rank] for rank in sorted(by_rank)]

    def _keep(self, now_s: float, rss: int | None, pss: int | None, group: int | None) -> None:
        if self._last_s is not None:
            self.largest_gap_s = max(self.largest_gap_s or 0.0, now_s - self._last_s)
        self._last_s = now_s
        self.num_samples += 1
        self.now_rss_bytes = rss or 0
        self._peak_rss_bytes = _larger(self._peak_rss_bytes, rss)
        self._peak_pss_bytes = _larger(self._peak_pss_bytes, pss)
        self._peak_group_bytes = _larger(self._peak_group_bytes, group)

    def _size(self, process: psutil.Process, *, with_pss: bool) -> tuple[int, int | None] | None:
        """Return resident and proportional bytes of one process; None if it is gone."""
        try:
            rss = int(process.memory_info().rss)
            key = (process.pid, process.create_time())
            if key not in self.seen or with_pss:  # again: between fork and exec it still looks like its parent
                environ = process.environ()
                met = self.seen.setdefault(key, SeenProcess(process.pid, "", None, None, None))
                met.name = process.name()
                met.rank = _number(environ.get(_RANK))
                met.world_size = _number(environ.get("WORLD_SIZE"))
                met.local_world_size = _number(environ.get("LOCAL_WORLD_SIZE") or environ.get("LOCAL_SIZE"))
            seen = self.seen[key]
        except psutil.Error:
            return None
        pss = proportional_bytes(process.pid) if with_pss else None
        seen.peak_rss_bytes = max(seen.peak_rss_bytes, rss, peak_resident_bytes(process.pid) or 0)
        seen.peak_pss_bytes = _larger(seen.peak_pss_bytes, pss)
        return rss, pss


class HostSampler(threading.Thread):
    """Samples a tree at fixed deadlines into a file until stopped; a thread, since its process only waits."""

    def __init__(self, tree: HostTree, path: Path) -> None:
        super().__init__(name="host-sampler", daemon=True)
        self.tree = tree
        self._path = path
        self._ending = threading.Event()

    def run(self) -> None:
        """Sample; missed deadlines are skipped."""
        begun_s, number = time.monotonic(), 0
        with self._path.open("w", encoding="utf-8", buffering=1) as file:
            file.write(HEADER)
            while not self._ending.is_set():
                file.write(self.tree.sample())
                number = max(number + 1, int((time.monotonic() - begun_s) / self.tree.interval_s) + 1)
                self._ending.wait(max(0.0, begun_s + number * self.tree.interval_s - time.monotonic()))

    def stop(self) -> HostSummary:
        """Stop sampling and return the summary."""
        self._ending.set()
        self.join()
        return self.tree.summary()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _larger(old: int | None, new: int | None) -> int | None:
    return max((value for value in (old, new) if value is not None), default=None)


def _cell(value: int | None) -> str:
    return "" if value is None else str(value)
