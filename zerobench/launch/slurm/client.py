"""Run Slurm's programs. Each call has a time limit: with a controller or munge daemon that is down, squeue and sacct
hang for a minute, too long for a status.

Slurm's programs may be absent (a laptop), wrapped in a site's shell script, or made to print something else by a user's
variables; so a program is ended with everything it started, and those variables are replaced.
"""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_CHANGES_OUTPUT = re.compile(r"(SQUEUE|SACCT|SINFO|SCONTROL)_\w+|SLURM_(JSON|YAML)")
"""Variables by which a user's shell changes the output of Slurm's programs and the jobs they omit (squeue(1), sacct(1),
section Environment Variables).
"""
_WANTED = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Unix times, whatever the time zone, and untruncated lists of array tasks, otherwise cut at 64 characters."""

_PIPES_CLOSE_S = 2.0
"""Seconds the pipes of a killed program may stay open: a child of a wrapper may have left the group."""


@dataclass(frozen=True)
class Answer:
    """Output and exit status of one of Slurm's programs."""

    stdout: str
    stderr: str
    exit_code: int


def run_client(argv: Sequence[str], timeout_s: float) -> str | None:
    """Return the output of `argv`; None if it is not installed, fails, or has not ended after `timeout_s` seconds."""
    answer = ask(argv, timeout_s)
    return answer.stdout if answer is not None and answer.exit_code == 0 else None


def ask(argv: Sequence[str], timeout_s: float) -> Answer | None:
    """Return the answer of `argv`, even a refusal; None if it is not installed or still runs after `timeout_s`."""
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=client_environment(os.environ),
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)
    return Answer(stdout.decode(errors="replace"), stderr.decode(errors="replace"), process.returncode)


def client_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with our values for the variables that change the output of Slurm's programs."""
    return {name: value for name, value in environment.items() if not _CHANGES_OUTPUT.fullmatch(name)} | _WANTED


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the rest of `process`, which leads its own session, and close its pipes."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=_PIPES_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
