"""Compile DeepSpeed's kernels before the first trial: once, visibly, and outside every trial's time.

In a separate process, since the runner imports neither torch nor DeepSpeed. A kernel that cannot be compiled fails the
trials that need it, and no others.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any

from zerobench.common.training_python import training_python
from zerobench.common.training_variables import training_variables
from zerobench.common.units import format_seconds
from zerobench.config.deepspeed.kernels import missing, name_architectures, needed
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.machine.compile_locks import free_stale_locks
from zerobench.launch.run.executor import Executor
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.outcome import describe_exit
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Failure
from zerobench.records.store import TornError, read_json

MODULE = "zerobench.rank.loop.compile_kernels"
POLL_S = 0.5
_GRACE_S = 10.0
"""Seconds an interrupted compilation may take to remove its lock."""
_WORDS_BYTES = 4096
_KILLED = "signal terminated program"
"""GCC's message about a killed compiler: usually the kernel's doing, out of memory."""
_ONE_AT_A_TIME = "host memory ran out? set MAX_JOBS=1 to compile one file at a time"

Failures = Mapping[str, Failure]
"""Failed compilations by kernel name."""


def compile_first(
    trials: Sequence[tuple[TrialSpec, TrialFolder]], executor: Executor, stop: Stop, observer: Observer
) -> Failures:
    """Compile the missing kernels of `trials`, whose files are in their folders; `observer` is informed."""
    wanted = dict.fromkeys(name for trial, folder in trials for name in kernels_of(trial, folder, executor))
    if not wanted:
        return {}
    compilation = _Compilation(executor, stop, observer)
    compilation.free_locks(tell_unknown=True)  # ranks wait for a lock of a kernel that is compiled, too
    names = missing(wanted, os.environ)
    if not names:
        return {}
    compilation.run(names)
    if compilation.failures and compilation.freed and not stop.asked:  # it waited for one that had died
        compilation.run([name for name in names if name in compilation.failures])
    return compilation.failures


def kernels_of(trial: TrialSpec, folder: TrialFolder, executor: Executor) -> list[str]:
    """Return the kernels that the ranks of a trial load on this machine; none if they run elsewhere."""
    if not folder.ds_config.exists() or not executor.compiles_for(trial):
        return []
    try:
        config: dict[str, Any] = read_json(folder.ds_config)
    except TornError:
        return []  # its ranks will say so
    return needed(config, is_cuda=executor.num_gpus > 0)


@dataclass
class _Compilation:
    """The compiling process and its results."""

    executor: Executor
    stop: Stop
    observer: Observer
    failures: dict[str, Failure] = field(default_factory=dict)
    freed: bool = False
    """True if a stale lock was removed since it started."""
    _told: set[str] = field(default_factory=set)
    _began_s: float = 0.0
    """Start of the current kernel, on the monotonic clock."""

    def run(self, names: Sequence[str]) -> None:
        """Compile `names` until all are done or the runner is stopped."""
        self.failures, self.freed = {}, False
        waiting = list(names)
        with TemporaryFile() as errors:
            with self._process(names, errors) as process:
                while (line := self._next(process, waiting)) is not None:
                    event = json.loads(line)
                    if "failure" in event:
                        waiting.remove(event["kernel"])
                        self._note_end(event["kernel"], event["failure"])
            errors.seek(0)
            words = errors.read().decode(errors="replace")[-_WORDS_BYTES:]
        for name in waiting if not self.stop.asked else []:
            self._note_end(name, f"the compilation {describe_exit(process.returncode)}\n{words}")

    def free_locks(self, *, tell_unknown: bool = False) -> None:
        """Remove the locks of dead holders and report each line once; with `tell_unknown` also locks whose holder is
        unknown.
        """
        for line in free_stale_locks(os.environ, tell_unknown=tell_unknown):
            self.freed = True
            self._tell_once(line)

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self.observer.note(line)

    def _next(self, process: subprocess.Popen[bytes], waiting: Sequence[str]) -> bytes | None:
        """Return the process's next line, None if it has ended or must end; reports progress while waiting."""
        if process.stdout is None:
            return None
        self._began_s = time.monotonic()
        while not self.stop.asked:
            if select.select([process.stdout], [], [], POLL_S)[0]:
                return process.stdout.readline() or None
            self.free_locks()
            if waiting:
                self.observer.compiling(waiting[0], time.monotonic() - self._began_s)
        return None

    def _note_end(self, name: str, failure: str | None) -> None:
        if failure is None:
            self.observer.note(f"compiled {name} in {format_seconds(time.monotonic() - self._began_s)}")
            return
        lines = failure.strip().splitlines()
        # For people: the compiler's own word where it is there, among all that ninja and torch say around it.
        cause = next((line.strip() for line in lines if "error:" in line or "not found" in line), lines[0])
        advice = f" ({_ONE_AT_A_TIME})" if _KILLED in cause else ""
        message = f"DeepSpeed's kernel {name} could not be compiled: {cause[:300]}{advice}"
        self.failures[name] = Failure(message=message, evidence=failure)
        self.observer.note(message)

    @contextlib.contextmanager
    def _process(self, names: Sequence[str], errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        """Run the process in a session of its own; on exit neither it, its compilers nor their locks remain."""
        environ = {**os.environ, **training_variables()}
        if self.executor.num_gpus:
            for line in name_architectures(environ):
                self._tell_once(line)
        else:
            environ["DS_ACCELERATOR"] = "cpu"
        process = subprocess.Popen(
            [str(training_python().python), "-m", MODULE, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            env=environ,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                _end(process)
                self.free_locks()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and the compilers that it started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.1)
    # SIGTERM first, so that it removes its lock; then SIGKILL to its whole group.
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE_S)
