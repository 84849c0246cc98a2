"""The simulator's process (zerobench.rank.loop.simulator) as its runner sees it.

It writes `begun <process> <trial folder>` when it has forked for a trial, and `ended <exit status> <trial folder>` when
that fork is gone; if a trial is played again with more room (zerobench.rank.loop.forked_trial), `begun` comes twice.
Both directions are pipes with at most a few lines in flight.
"""

import contextlib
import os
import select
import selectors
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from zerobench.common.grouped import grouped
from zerobench.common.training_python import training_python
from zerobench.common.training_variables import training_variables
from zerobench.config.hardware.hardware import known_gpu
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.emulator.emulator import find_emulator
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.launch.run.ranks import open_pidfd
from zerobench.records.folder import TrialFolder

MODULE = "zerobench.rank.loop.simulator"
_EXIT_S = 5.0
"""Seconds it may take to end after closing its output."""


class Message(NamedTuple):
    """One line from the simulator."""

    verb: str
    """`begun` or `ended`."""
    number: int
    """Process id, or exit status as in subprocess."""
    path: str
    """The trial's folder."""


class Simulator:
    """The process, in a session of its own: a context manager that leaves nothing of it behind.

    `added` are its variables beyond ours.
    """

    def __init__(self, jobs: int, world: Evidence, added: Mapping[str, str]) -> None:
        self._argv = [str(training_python().python), "-m", MODULE, "--world", world.value, "--jobs", str(jobs)]
        self._added = added
        self._text = b""
        self.is_gone = False
        """True if it has closed its output: it is ending, or has ended."""

    def __enter__(self) -> Self:
        self._errors = TemporaryFile()
        added = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu", **self._added}
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **training_variables(), **added},
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        self._errors.close()

    def send(self, folder: Path) -> None:
        """Send a trial's folder; a simulator that is gone is noticed by its silence."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.write(os.fsencode(f"{folder}\n"))
                self._process.stdin.flush()

    def hear(self, patience_s: float) -> list[Message]:
        """Return its next messages; none if it is silent for `patience_s`."""
        if self._process.stdout is None:
            return []
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(patience_s):
                return []
        chunk = os.read(self._process.stdout.fileno(), 65536)
        self.is_gone = not chunk
        *lines, self._text = (self._text + chunk).split(b"\n")
        fields = (os.fsdecode(line).split(" ", 2) for line in lines)
        return [Message(verb, int(number), path) for verb, number, path in fields]

    @property
    def spent_s(self) -> float:
        """Its own processor time: grows while it imports, stands still while it is stopped or waits."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def kill(self, pid: int) -> None:
        """Kill one of its forks, which it will report."""
        with contextlib.suppress(OSError):  # gone meanwhile
            if os.getsid(pid) == self._process.pid:
                os.kill(pid, signal.SIGKILL)

    def end(self) -> int:
        """End it with all of its forks; returns its exit status, as in subprocess."""
        if self._process.returncode is None:
            if self.is_gone and (pidfd := open_pidfd(self._process.pid)) is not None:
                # A moment, in which it is not collected: until then its number, by which its forks end, is nobody's.
                select.select([pidfd], [], [], _EXIT_S)
                os.close(pidfd)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its forks outlive it where it was killed itself
        return self._process.wait()

    def words(self) -> str:
        """Return its own error output; forks have files of their own."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


Pair = tuple[TrialSpec, TrialFolder]


def group_by_simulator(trials: Sequence[Pair]) -> list[list[Pair]]:
    """Group trials by simulator: one per world, and per GPU if it must be known from the start."""

    def kind(pair: Pair) -> tuple[Evidence, str | None]:
        trial, _ = pair
        return trial.evidence, trial.prediction.gpu if trial.evidence is Evidence.EMULATED else None

    return list(grouped(trials, kind).values())


def simulator_variables(trial: TrialSpec) -> dict[str, str]:
    """Return the variables that such a trial's simulator has beyond ours.

    Raises UserError if there is no emulator here, or none of that GPU.
    """
    if trial.evidence is not Evidence.EMULATED:
        return {}
    gpu = EmulatedGpu.build(known_gpu(trial.prediction.gpu or ""))
    return find_emulator().variables(gpu, environ={**os.environ, **training_variables()})
