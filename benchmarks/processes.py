"""Runs one launched process tree to its end and says when it ended, finer than its launcher can.

DeepSpeed's launcher looks after its ranks once a second (deepspeed/launcher/launch.py, main), so its own end comes up
to a second after theirs, by chance. What counts as the end here is the last rank's: its result file names its process,
and a pidfd tells when that is gone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

PATIENCE_S = 900.0
GRACE_S = 15.0
_LOOK_AGAIN_S = 0.05


def run_ranks(
    argv: Sequence[str], environment: dict[str, str], log: Path, results: Sequence[Path]
) -> tuple[float, float]:
    """Run a launcher until its ranks, each of which leaves one of `results`, have ended; Unix times of start and end.

    A result is a JSON object with the rank's `pid`. Raises SystemExit with the end of the log when the launcher fails
    or takes longer than PATIENCE_S; nothing of it stays.
    """
    with log.open("wb") as file:
        begun_s = time.time()
        process = subprocess.Popen(argv, env=environment, stdout=file, stderr=file, start_new_session=True)
        try:
            pids = [_pid(process, path) for path in results]
            for pid in pids:
                _await_end(pid)
            ended_s = time.time()
            process.wait(PATIENCE_S)
        finally:
            _end(process)
    if process.returncode != 0 or None in pids:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
        raise SystemExit(f"{' '.join(argv)}\nexit code {process.returncode}:\n{tail}")
    return begun_s, ended_s


def cpu_seconds(pid: int) -> float:
    """User and system time that all threads of process `pid` have taken so far, to the nanosecond.

    The clock of another process, as clock_getcpuclockid(3) makes its number; /proc tells hundredths of a second only.
    """
    return time.clock_gettime((~pid << 3) | 2)


def _pid(process: subprocess.Popen[bytes], result: Path) -> int | None:
    """The process id that a rank's result names, once it is there; None when the launcher ended without it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        try:
            return int(json.loads(result.read_bytes())["pid"])
        except (OSError, ValueError):  # not there, or half written
            if ended:
                return None
        time.sleep(_LOOK_AGAIN_S)
    return None


def _await_end(pid: int | None) -> None:
    """Return when the process has ended, reaped or not."""
    if pid is None:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], PATIENCE_S)
    finally:
        os.close(descriptor)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the launcher, and what it started, where it still runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue
