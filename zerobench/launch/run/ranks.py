"""Watch the ranks of a running trial: their progress, and the time and exit status of each death.

DeepSpeed's launcher polls its ranks once a second, ends the others when it finds one dead, and reports one exit code,
so it cannot tell which rank died first. The kernel can: a process file descriptor (pidfd_open(2)) wakes us the moment a
rank dies, and until the launcher collects it, /proc/<pid>/stat holds its wait status (proc(5), field 52).

A file's modification time comes from a file server, or from the node that wrote it (Lustre): an hour ahead, it would
make the first failure the last. So it counts only if plausible: after the trial began and before the runner saw the
file. Otherwise the sighting counts, late by one look of the runner (launched.POLL_S) at most. If plausible, the
modification time is the better figure: a shared folder may show a file long after it was written.
"""

import os
import select
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from pydantic import ValidationError

from zerobench.launch.run import tree
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Progress

COARSE_S = 0.01
"""File systems round times down to a tick of the kernel's clock, in seconds."""


def written_at_s(
    folder: TrialFolder, ranks: Iterable[int], began_at_s: float, seen_at_s: Mapping[Path, float]
) -> dict[int, float]:
    """Return the Unix time, on this machine's clock, at which each of `ranks` wrote its existing record.

    `seen_at_s`: the runner's first sighting of each record, now for others; `began_at_s`: the trial's start.
    """
    now_s = time.time()
    paths = {rank: folder.rank_record(rank) for rank in ranks}
    return {
        rank: believed_s(path.stat().st_mtime, began_at_s, seen_at_s.get(path, now_s)) for rank, path in paths.items()
    }


def believed_s(modified_s: float, began_at_s: float, seen_at_s: float) -> float:
    """Return the modification time `modified_s` if plausible, else the time of the sighting."""
    return modified_s if began_at_s - COARSE_S <= modified_s <= seen_at_s + COARSE_S else seen_at_s


@dataclass(frozen=True)
class RankDeath:
    """End of one rank's process."""

    rank: int
    at_s: float
    """Unix time."""
    exit_code: int | None
    """As in subprocess: negative for a signal; None if the launcher had collected it first."""


class _Stat(NamedTuple):
    """The needed fields of /proc/<pid>/stat."""

    state: str
    session: int
    started_ticks: int
    wait_status: int


@dataclass
class _WatchedRank:
    rank: int
    pid: int
    started_ticks: int
    pidfd: int | None


class RankWatch:
    """Ranks of one trial, from their progress files and the kernel.

    A process id in a progress file counts only if the process is the trial's: it carries `mark`, or belongs to the
    `session` led by the trial's launcher. Exit statuses of ranks on other nodes come from files in the trial's folder,
    as a shell's: 128 plus the signal's number.
    """

    def __init__(self, folder: TrialFolder, session: int, mark: str | None = None) -> None:
        self._folder = folder
        self._session = session
        self._mark = mark
        self._hostname = socket.gethostname()
        self._began_at_s = time.time()
        self._alive: dict[int, _WatchedRank] = {}
        self._written: dict[Path, int] = {}
        self._poll = select.poll()
        self.progress: dict[int, Progress] = {}
        """The latest progress of each rank."""
        self.deaths: dict[int, RankDeath] = {}

    def wait(self, pidfd: int | None, timeout_s: float) -> None:
        """Return when a watched rank, or the process behind `pidfd`, ends; at the latest after `timeout_s`."""
        if pidfd is not None:
            self._poll.register(pidfd, select.POLLIN)
        self._poll.poll(timeout_s * 1000)
        self._note_deaths()

    def look(self) -> list[Progress]:
        """Read changed files; returns the latest progress of each rank, by rank."""
        for path in self._folder.path.glob("progress_*.json"):
            progress = self._changed(path)
            if progress is not None:
                self.progress[progress.rank] = progress
                self._watch(progress)
        self._note_deaths()
        # What was written of ranks' ends knows the status that another process had collected.
        for path in self._folder.rank_exits():
            exited = _read_exit(path, self._began_at_s)
            known = exited and self.deaths.get(exited.rank)
            if exited is not None and (known is None or known.exit_code is None):
                self.deaths[exited.rank] = exited
        return [self.progress[rank] for rank in sorted(self.progress)]

    def living(self) -> list[int]:
        """Return the ranks on this node that have reported and still run."""
        self._note_deaths()
        return sorted(self._alive)

    def close(self) -> None:
        """Stop watching; results stay."""
        for watched in self._alive.values():
            _close(watched.pidfd)
        self._alive.clear()

    def _changed(self, path: Path) -> Progress | None:
        """Read the progress file at `path` if it was written since the last look."""
        try:
            written = path.stat().st_mtime_ns
            if self._written.get(path) == written:
                return None
            progress = Progress.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):  # a live view only: the next look reads it
            return None
        self._written[path] = written
        return progress

    def _watch(self, progress: Progress) -> None:
        """Begin to watch a rank's process on this node, if we started it."""
        rank, pid = progress.rank, progress.pid
        if rank in self._alive or rank in self.deaths or progress.hostname != self._hostname:
            return
        stat = _stat(pid)
        if stat is None or not (stat.session == self._session or self._is_marked(pid)) or _is_other(pid, rank):
            return
        pidfd = open_pidfd(pid)
        if pidfd is not None:
            self._poll.register(pidfd, select.POLLIN)
        self._alive[rank] = _WatchedRank(rank, pid, stat.started_ticks, pidfd)

    def _is_marked(self, pid: int) -> bool:
        try:
            return tree.belongs(psutil.Process(pid), self._mark)
        except psutil.Error:
            return False

    def _note_deaths(self) -> None:
        for rank, watched in list(self._alive.items()):
            stat = _stat(watched.pid)
            collected = stat is None or stat.started_ticks != watched.started_ticks
            if not collected and stat is not None and stat.state not in "ZX":
                continue
            code = None if collected or stat is None else os.waitstatus_to_exitcode(stat.wait_status)
            self.deaths[rank] = RankDeath(rank, time.time(), code)
            del self._alive[rank]
            if watched.pidfd is not None:
                self._poll.unregister(watched.pidfd)
            _close(watched.pidfd)


def _is_other(pid: int, rank: int) -> bool:
    """Return True if process `pid` claims another rank."""
    # Another rank's process has this number if the rank is on a node with our hostname.
    try:
        claimed = psutil.Process(pid).environ().get("RANK")
    except psutil.Error:  # it is a zombie, and says nothing
        return False
    return claimed is not None and claimed != str(rank)


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when process `pid` ends; None if the kernel cannot provide one."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _close(pidfd: int | None) -> None:
    if pidfd is not None:
        os.close(pidfd)


def _read_exit(path: Path, began_at_s: float) -> RankDeath | None:
    """Read `exit_<rank>.txt`; None if half written or gone."""
    try:
        at_s, code = believed_s(path.stat().st_mtime, began_at_s, time.time()), int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return RankDeath(int(path.stem.removeprefix("exit_")), at_s, 128 - code if code > 128 else code)


def _stat(pid: int) -> _Stat | None:
    """Read fields 3, 6, 22 and 52 of /proc/<pid>/stat; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name may hold spaces and parentheses
    return _Stat(fields[0], int(fields[3]), int(fields[19]), int(fields[49]))
