"""Asks Slurm's own programs. Each call has a time limit: a controller that is down, or a dead munge daemon, leaves
squeue and sacct hanging for a minute, and nobody who asks how a run stands may wait on that.

Slurm's programs may be absent (a laptop), wrapped in a site's shell script, or told by a user's variables to print
something else than they are asked; so a program is ended with all that it started, and those variables are replaced.
"""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_CHANGES_OUTPUT = re.compile(r"(SQUEUE|SACCT|SINFO|SCONTROL)_\w+|SLURM_(JSON|YAML)")
"""Variables by which a user's shell changes what Slurm's programs print and which jobs they leave out (squeue(1),
sacct(1), section Environment Variables)."""
_WANTED = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Times as Unix time, whatever the time zone, and lists of array tasks whole: they are cut at 64 characters else."""

_PIPES_CLOSE_S = 2.0
"""How long the pipes of a program that was killed may stay open: a child of a wrapper may have left the group."""


@dataclass(frozen=True)
class Answer:
    """What a program of Slurm's printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int


def run_client(argv: Sequence[str], timeout_s: float) -> str | None:
    """What `argv` prints; None where it is not installed, fails, or has not ended after `timeout_s` seconds."""
    answer = ask(argv, timeout_s)
    return answer.stdout if answer is not None and answer.exit_code == 0 else None


def ask(argv: Sequence[str], timeout_s: float) -> Answer | None:
    """What `argv` answers, a refusal included; None where it is not installed or still runs after `timeout_s`."""
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
    """`environment` with the variables that change what Slurm's programs print as we want them."""
    return {name: value for name, value in environment.items() if not _CHANGES_OUTPUT.fullmatch(name)} | _WANTED


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs of `process`, which leads a session of its own, and let go of its pipes."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=_PIPES_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
