"""Processes of a trial: found by a mark they inherit, ended completely, and never anyone else's.

A process is a trial's if it inherited the trial's mark in its environment (launcher.MARK) or belongs to the session led
by the trial's launcher. Both outlive parents and process groups, so nothing that double-forked or changed its group is
missed, and no process is ever chosen by its name. psutil compares creation times before each signal, so a recycled
process id is never hit.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from zerobench.launch.run.launcher import MARK

GRACE_S = 5.0
"""Seconds processes may take to end after SIGTERM."""
_PAUSE_S = 0.1


def members(mark: str | None, session: int | None = None) -> list[psutil.Process]:
    """Return the living processes that carry `mark` or belong to session `session`; never the caller itself."""
    our_pid = os.getpid()
    candidates = (process for process in psutil.process_iter() if process.pid != our_pid)
    return [process for process in candidates if belongs(process, mark, session)]


def belongs(process: psutil.Process, mark: str | None, session: int | None = None) -> bool:
    """Return True if a living process carries `mark` or belongs to session `session`."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if session is not None and os.getsid(process.pid) == session:
            return True
        return mark is not None and process.environ().get(MARK) == mark
    except (psutil.Error, OSError):  # gone meanwhile, or another user's: not ours to end
        return False


def end(find: Callable[[], Sequence[psutil.Process]], grace_s: float = GRACE_S, *, politely: bool = True) -> list[str]:
    """End all processes that `find` returns; returns the names of those found first.

    `politely` sends SIGTERM and waits `grace_s` before SIGKILL. `find` is called until it finds none, so a process born
    meanwhile does not escape.
    """
    processes = find()
    names = [_name(process) for process in processes]
    if politely:
        for process in processes:
            _signal(process, signal.SIGTERM)
        wait_gone(find, grace_s)
    deadline = time.monotonic() + grace_s
    # `find` is called until it finds none, so a process born meanwhile does not escape.
    while (left := find()) and time.monotonic() < deadline:
        for process in left:
            _signal(process, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    return names


def wait_gone(find: Callable[[], Sequence[psutil.Process]], patience_s: float) -> None:
    """Return when `find` finds no process, or after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while find() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)  # psutil.wait_procs would collect our own child behind subprocess's back


def catches(process: psutil.Process, number: signal.Signals) -> bool:
    """Return True if `process` handles signal `number`: without a handler, most signals would end it (proc(5))."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def request_stacks(processes: Sequence[psutil.Process]) -> list[int]:
    """Ask each of `processes` with a SIGUSR1 handler to dump its Python stacks; returns the pids asked."""
    listening = [process for process in processes if catches(process, signal.SIGUSR1)]
    for process in listening:
        _signal(process, signal.SIGUSR1)
    return [process.pid for process in listening]


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:  # gone meanwhile
        return


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.name()}"
    except psutil.Error:
        return str(process.pid)
