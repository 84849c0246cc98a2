"""Starts a trial's ranks on this machine and ends them together, for engines without a launcher of their own.

DeepSpeed's launcher starts ranks with its own interpreter, and a separate environment has no DeepSpeed. This does the
same for the runner: RANK, LOCAL_RANK and WORLD_SIZE, a log file per rank; when one fails, the others get some time to
report, are ended, and the exit status is that of the first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

_POLL_S = 0.1
_LAST_WORDS_S = 5.0
"""Seconds that the other ranks may take to fail by themselves, and to end once signalled."""


def leave(code: int) -> NoReturn:
    """End this rank's process immediately, with its output written, without Python's and libraries' exit handlers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports on which nothing listens."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def rank_environment(rank: int, world_size: int) -> dict[str, str]:
    """Variables that identify a rank, as set by torch's and DeepSpeed's launchers; all ranks are on this machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
    }


def run_ranks(module: str, arguments: Sequence[str], environments: Sequence[Mapping[str, str]], logs: Path) -> int:
    """Run `python -m module arguments` once for each of `environments` until all have ended; returns the exit status.

    Output of rank r goes to `logs`/rank<r>.log. The status is 0, or that of the first rank to fail.

    Raises OSError: a log cannot be written.
    """
    logs.mkdir(exist_ok=True)
    with ExitStack() as files:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-u", "-m", module, *arguments],
                env={**os.environ, **added},
                stdin=subprocess.DEVNULL,
                stdout=files.enter_context((logs / f"rank{rank}.log").open("ab")),
                stderr=subprocess.STDOUT,
            )
            for rank, added in enumerate(environments)
        ]
        try:
            return _first_failure(ranks)
        finally:
            _end(ranks)


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all ranks, or for one that fails: its status, with a signal as a shell reports it."""
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = next((code for code in codes if code), None)
        if failed is not None:
            _wait(ranks, _LAST_WORDS_S)
            return failed if failed > 0 else 256 + failed
        if None not in codes:
            return 0
        time.sleep(_POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        rank.terminate()  # does nothing to one that has ended
    _wait(ranks, _LAST_WORDS_S)
    for rank in ranks:
        rank.kill()
        rank.wait()


def _wait(ranks: Sequence[subprocess.Popen[bytes]], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
        time.sleep(_POLL_S)
