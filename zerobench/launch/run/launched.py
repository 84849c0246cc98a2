"""Process tree of one trial, from the launcher's start to the last process's end."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from zerobench.common.vocabulary import Status
from zerobench.launch.run import tree
from zerobench.launch.run.executor import Launch
from zerobench.launch.run.launcher import MARK, remote_environment_text
from zerobench.launch.run.outcome import Stopped
from zerobench.launch.run.quiet import Quiet
from zerobench.launch.run.ranks import RankDeath, RankWatch, open_pidfd
from zerobench.launch.run.stop import Stop
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Progress

POLL_S = 0.25
LAST_WORDS_S = 3.0
"""Seconds that helpers, such as the sampler, may outlive the launcher."""
STACKS_S = 5.0
"""Seconds ranks may take to dump their stacks."""
STACKS_BYTES = 65536
"""Longest dump stored of one rank's stacks."""


class LaunchedTrial:
    """A running trial: a context manager that leaves no process of it behind.

    Its processes on other nodes are reached through the launch.
    """

    def __init__(self, launch: Launch, folder: TrialFolder) -> None:
        self._launch = launch
        self._mark = launch.added[MARK]
        self._folder = folder
        self._settled_at: float | None = None
        self.seen_at_s: dict[Path, float] = {}
        """First sighting of each rank's record, Unix time."""
        self.outlived_by: list[int] = []
        """Ranks still running when the launcher ended; normally it ends after them."""
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        self._held = ExitStack()
        extra = self._held.enter_context(_env_file(self._launch))
        with self._folder.stdout.open("ab") as out, self._folder.stderr.open("ab") as err:
            self._process = subprocess.Popen(
                list(self._launch.argv),
                env={**os.environ, **self._launch.added, **extra},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._pidfd = open_pidfd(self._process.pid)
        self.watch = RankWatch(self._folder, self._process.pid, self._mark)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.end()
        finally:
            self.watch.close()
            self._held.close()
            if self._pidfd is not None:
                os.close(self._pidfd)

    @property
    def exit_code(self) -> int | None:
        """The launcher's exit status; None while it runs."""
        return self._process.poll()

    def members(self) -> list[psutil.Process]:
        """Return the trial's living processes on this node."""
        return tree.members(self._mark, self._process.pid)

    def wait(
        self,
        stop: Stop,
        timeout_s: float,
        ranks_expected: int,
        settle_s: float,
        seen: Callable[[Sequence[Progress]], None],
    ) -> Stopped | None:
        """Wait until the launcher has ended (returns None) or must be ended (returns the reason); `seen` gets the
        progress.

        `timeout_s` is how long all ranks may make no progress, `settle_s` how long the launcher may take to end after a
        failure or after all ranks are done.
        """
        quiet = Quiet()
        while True:
            self.watch.wait(self._pidfd, POLL_S)
            words = self.watch.look()
            quiet.hear(words)
            seen(words)
            if self.exit_code is not None:
                self.outlived_by = self.watch.living()
                return None
            if stop.asked:
                return Stopped.INTERRUPTED
            if quiet.seconds > timeout_s:
                return Stopped.TIMEOUT
            if self._overdue(ranks_expected, settle_s):
                return Stopped.SETTLED

    def _overdue(self, ranks_expected: int, settle_s: float) -> bool:
        """Return True if the outcome is settled and the launcher has had `settle_s` to end."""
        for path in set(self._folder.rank_records()) - self.seen_at_s.keys():
            self.seen_at_s[path] = time.time()
            if _failed(path) or len(self.seen_at_s) == ranks_expected:
                self._settled_at = self._settled_at or time.monotonic()
        return self._settled_at is not None and time.monotonic() - self._settled_at > settle_s

    def deaths(self) -> tuple[RankDeath, ...]:
        """Return the ranks known to have ended."""
        self.watch.look()
        return tuple(self.watch.deaths.values())

    def dump_stacks(self, stop: Stop) -> dict[str, str]:
        """Return the Python stacks by rank; ranks that could not answer are missing."""
        pids = {progress.pid for progress in self.watch.look()}
        signalled = tree.request_stacks([process for process in self.members() if process.pid in pids])
        self._apply_verb("stacks")
        ranks = [p.rank for p in self.watch.look() if p.pid in signalled or self._launch.elsewhere]
        # Until the dumps are there and grow no more.
        deadline = time.monotonic() + STACKS_S
        before: list[int] = []
        while time.monotonic() < deadline and not stop.asked:
            sizes = [_size(self._folder.stacks(rank)) for rank in ranks]
            if all(sizes) and sizes == before:
                break
            before = sizes
            time.sleep(POLL_S)
        return {str(p.rank): text for p in self.watch.look() if (text := _read_stacks(self._folder, p.rank))}

    def end(self) -> None:
        """End the rest of the trial everywhere; `notes` names processes that outlived the launcher."""
        if self.exit_code is None:
            if self._launch.elsewhere:
                # The launcher goes first, and unasked: asked politely it would `pkill` on each node.
                tree.end(lambda: tree.members(None, self._process.pid), politely=False)
                self._apply_verb("end")
            tree.end(self.members)
            self._process.wait(timeout=tree.GRACE_S)
            return
        tree.wait_gone(self.members, LAST_WORDS_S)
        outlived = tree.end(self.members)
        if outlived:
            self.notes.append(f"killed processes left by the launcher: {', '.join(outlived)}")

    def _apply_verb(self, verb: str) -> None:
        if self._launch.elsewhere:
            self.notes += self._launch.elsewhere(verb, self._mark)


@contextmanager
def _env_file(launch: Launch) -> Iterator[dict[str, str]]:
    """Yield the variable naming the file from which ranks on other nodes read the launch's variables."""
    if not launch.needs_env_file:
        yield {}
        return
    # The file repeats the user's ~/.deepspeed_env, which may hold secrets: so it is outside the run folder, readable by
    # its owner alone, and exists only while the trial runs.
    with tempfile.NamedTemporaryFile("w", prefix="zerobench-", suffix=".env", encoding="utf-8") as file:
        file.write(remote_environment_text(launch.added, os.environ))
        file.flush()
        yield {"DS_ENV_FILE": file.name}


def _failed(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_bytes())["status"] != Status.COMPLETED)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_stacks(folder: TrialFolder, rank: int) -> str:
    try:
        with folder.stacks(rank).open("rb") as file:
            return file.read(STACKS_BYTES).decode(errors="replace")
    except OSError:
        return ""
