"""A user's command from start to end: signals forwarded, its process tree and its ranks watched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from zerobench.common.errors import UserError
from zerobench.launch.machine.compile_locks import free_stale_locks
from zerobench.launch.run import tree
from zerobench.launch.run.attempt import last_lines
from zerobench.launch.run.launcher import MARK
from zerobench.launch.run.logs import redact_logs
from zerobench.launch.run.oom import read_oom_counters
from zerobench.launch.run.outcome import Ending, Stopped
from zerobench.launch.run.ranks import RankWatch, open_pidfd, written_at_s
from zerobench.launch.run.stop import Stop
from zerobench.launch.run.trial_record import readable_ranks
from zerobench.launch.tracking.host_tree import HostSampler, HostTree
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Progress
from zerobench.records.records import HostSummary, NvmlSummary, read_or_none

_CHUNK_BYTES = 65536


class StreamCopy(threading.Thread):
    """Copies one stream of the command to `path` and to `show`, until all its writers have ended."""

    def __init__(self, path: Path, show: Callable[[bytes], None]) -> None:
        super().__init__(name=f"pass-{path.stem}", daemon=True)
        self._path = path
        self._show = show
        self.faults: list[str] = []
        """Reasons for missing parts of the stream."""
        self._from, self.to = os.pipe()
        """The command gets `to`; our copy is closed once it has it (`started`)."""

    def started(self) -> None:
        """Start copying: the command has its end of the pipe."""
        os.close(self.to)
        self.start()

    def run(self) -> None:
        """Copy. A taker that fails, a full disk or a closed screen, is dropped: the command must not wait."""
        takers = [self._keep, self._show]
        while chunk := os.read(self._from, _CHUNK_BYTES):
            for taker in tuple(takers):
                try:
                    taker(chunk)
                except (OSError, ValueError) as error:
                    takers.remove(taker)
                    self.faults.append(f"{self._path.name}: not passed on or not stored from here: {error}")
        os.close(self._from)

    def _keep(self, chunk: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(chunk)

    def finish(self, patience_s: float) -> bool:
        """Wait for the end of the stream; False if a process that outlived the command still holds it."""
        self.join(patience_s)
        return not self.is_alive()


NODE = 0
"""Index of the watcher's own node; trackers inside the command number the others after it (agreement.py)."""
POLL_S = 0.25
HOST_INTERVAL_S = 0.1
LOCKS_S = 5.0
"""Seconds between two looks for locks of dead compilations."""
HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
"""Forwarded signals besides those that end the command (zerobench.launch.run.stop); a second one of those kills it with
all of its processes.
"""
LAST_WORDS_S = 1.0
"""Seconds output may take to arrive after the command's end."""


@dataclass(frozen=True)
class CommandProgress:
    """Progress of the command for a view."""

    spent_s: float
    ranks: Sequence[Progress]
    """Ranks reported by a tracker inside the command."""
    num_ranks: int
    rss_bytes: int
    """Resident bytes of the whole tree, now."""
    nvml: NvmlSummary | None


@dataclass(frozen=True)
class Show:
    """Callbacks of a view."""

    out: Callable[[bytes], None]
    err: Callable[[bytes], None]
    progress: Callable[[CommandProgress], None]
    note: Callable[[str], None] = lambda _line: None
    """Takes a line of zerobench's own."""


class Command:
    """The command from start to end."""

    def __init__(
        self,
        program: str,
        command: Sequence[str],
        folder: TrialFolder,
        show: Show,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._variables = variables or {}
        self.returncode = 0
        self.started_at_s = time.time()
        self._show = show
        self.notes: list[str] = []
        self._free_locks()
        self._mark = str(folder.path.absolute())
        self._streams = (StreamCopy(folder.stdout, show.out), StreamCopy(folder.stderr, show.err))
        self._oom_before = read_oom_counters()
        with ExitStack() as started:
            started.enter_context(self._handing_on())  # before the command can say that it is ready for them
            self._process = self._start(program, command)
            self._held = started.pop_all()
        for stream in self._streams:
            stream.started()
        self.ranks = RankWatch(folder, self._process.pid)
        self.tree = HostTree(socket.gethostname(), HOST_INTERVAL_S, self._members, NODE)
        self._host = HostSampler(self.tree, folder.host_samples(NODE))

    def _start(self, program: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                list(command),
                executable=program,
                env={**os.environ, **self._variables, MARK: self._mark},
                stdout=self._streams[0].to,
                stderr=self._streams[1].to,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"COMMAND: {command[0]!r} cannot be started: {error.strerror or error}") from None

    def _members(self) -> list[psutil.Process]:
        return tree.members(self._mark, self._process.pid)

    def run(self, stop: Stop) -> tuple[Ending, HostSummary, list[str]]:
        """Wait for the end, forwarding signals; returns the evidence, the host's memory and notes."""
        self._host.start()
        try:
            with self._held:
                stopped = self._wait(stop)
            held = [stream for stream in self._streams if not stream.finish(LAST_WORDS_S)]
        finally:
            self.ranks.look()
            self.ranks.close()
            host = self._host.stop()
        redact_logs(self.folder)
        notes = [*self.notes]
        notes += ["leftover processes of the command hold its output: its end is lost"] if held else []
        notes += [fault for stream in self._streams for fault in stream.faults]
        return self._ending(stopped), host, notes

    def _wait(self, stop: Stop) -> Stopped | None:
        pidfd = open_pidfd(self._process.pid)
        asked_at_s: float | None = None
        begun_s = looked_s = time.monotonic()
        while self._process.poll() is None:
            self.ranks.wait(pidfd, POLL_S)
            if time.monotonic() - looked_s > LOCKS_S:
                looked_s = time.monotonic()
                self._free_locks("; ranks that waited for it fail, and compile when started again")
            spent_s = time.monotonic() - begun_s
            spoken = self.ranks.look()
            ranks = len(self.tree.ranks)
            nvml = read_nvml_summary(self.folder, NODE)
            self._show.progress(CommandProgress(spent_s, spoken, ranks, self.tree.now_rss_bytes, nvml))
            if stop.signal is None:
                continue
            if asked_at_s is None:
                asked_at_s = time.monotonic()
                self._signal(stop.signal)
                stop.signal = None
            else:  # the second one
                tree.end(self._members, politely=False)
        if pidfd is not None:
            os.close(pidfd)
        self.returncode = self._process.returncode
        return None if asked_at_s is None else Stopped.INTERRUPTED

    def _free_locks(self, outcome: str = "") -> None:
        """Remove the locks of dead compilations, for which ranks wait forever, and report them with the `outcome`."""
        environ = {**os.environ, **self._variables}
        for line in free_stale_locks(environ, tell_unknown=not outcome):
            self.notes.append(f"{line}{outcome}")
            self._show.note(f"{line}{outcome}")

    @contextmanager
    def _handing_on(self) -> Iterator[None]:
        """Forward signals that a script may wait for, such as a scheduler's warning before its limit."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def hand_on(number: int, _frame: FrameType | None) -> None:
            if hasattr(self, "_process"):
                self._process.send_signal(number)

        before = {number: signal.signal(number, hand_on) for number in HANDED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signal(self, number: signal.Signals) -> None:
        # The whole process group, as a terminal would.
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def _ending(self, stopped: Stopped | None) -> Ending:
        records = readable_ranks(self.folder)
        return Ending(
            ranks_expected=self.num_ranks,
            exit_code=self.returncode,
            records=records,
            written_at_s=written_at_s(self.folder, (record.rank for record in records), self.started_at_s, {}),
            deaths=tuple(self.ranks.deaths.values()),
            progress=tuple(self.ranks.progress[rank] for rank in sorted(self.ranks.progress)),
            stopped=stopped,
            oom=read_oom_counters().since(self._oom_before),
            last_lines=last_lines(self.folder),
        )

    @property
    def num_ranks(self) -> int:
        """World size from the ranks' environment; else the number of ranks seen; 1 for a plain command."""
        sizes = [process.world_size for process in self.tree.ranks if process.world_size]
        return max([*sizes, len(self.tree.ranks), 1])

    @property
    def ranks_per_node(self) -> int:
        """Ranks on this node."""
        sizes = [process.local_world_size for process in self.tree.ranks if process.local_world_size]
        return max([*sizes, len(self.tree.ranks), 1])


def read_nvml_summary(folder: TrialFolder, node: int) -> NvmlSummary | None:
    """Read the sampler's summary so far; None before its first."""
    return read_or_none(folder.nvml_summary(node), NvmlSummary)
