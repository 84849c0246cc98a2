"""The current job, from Slurm's variables and programs."""

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from zerobench.common.errors import UserError
from zerobench.launch.slurm.client import run_client
from zerobench.launch.slurm.queue import job_states
from zerobench.launch.slurm.tasks import TaskState

_PATIENCE_S = 10.0
_LAST_WORD_S = 3.0
"""Seconds to wait for Slurm while it is about to kill us (KillWait, 30 s by default)."""
_DOWN = {"down", "fail", "failing"}
_FLAGS = "*~#!%$@^-+"
"""Suffixes that sinfo adds to a state (sinfo(1), NODE STATE CODES): `down*` does not answer."""


_BOOTED = re.compile(r"^NodeName=(\S+) .* BootTime=(\d+)(?!\S)", re.MULTILINE)
"""Matches output of `scontrol --oneliner show node` with Unix times; `None` does not match."""


@dataclass(frozen=True)
class Allocation:
    """One job, or one task of an array, with its nodes."""

    job_id: int
    """The array's id for a task of one: the number `sbatch` printed."""
    task_id: int | None
    restarts: int
    """Number of requeues."""
    nodes: tuple[str, ...]
    """Slurm's node names; the batch script runs on the first."""
    cpus_per_node: int
    gpus_per_node: int
    hostname: str
    """Name by which other nodes reach this one."""

    @property
    def job(self) -> str:
        """Name in records: `123`, `123_4` in an array, `123_4.2` at its second start."""
        task = "" if self.task_id is None else f"_{self.task_id}"
        return f"{self.job_id}{task}" + (f".{self.restarts + 1}" if self.restarts else "")

    def state(self, timeout_s: float = _LAST_WORD_S) -> TaskState | None:
        """Return Slurm's state of this job; None if Slurm does not answer or has forgotten it."""
        states = job_states([self.job_id], timeout_s) or {}
        return next((task for task in states.get(self.job_id, []) if task.task_id == self.task_id), None)

    @cached_property
    def ends_at_s(self) -> float | None:
        """Unix time of the job's time limit; asked of Slurm once."""
        state = self.state(_PATIENCE_S)
        return None if state is None else state.end_s

    def limit_is_over(self, now_s: float) -> bool:
        """Return True if the time limit has passed, by Slurm's first answer."""
        return self.ends_at_s is not None and now_s >= self.ends_at_s


def parse_job(name: str) -> tuple[int, int | None, int]:
    """Split a name made by `Allocation.job` into job, task and restarts. Raises ValueError."""
    job, _, starts = name.partition(".")
    number, _, task = job.partition("_")
    return int(number), int(task) if task else None, int(starts or 1) - 1


def read_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return the job that `environ` describes.

    Raises UserError if it describes none, or Slurm does not list its nodes.
    """
    job_id = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    if job_id is None:
        raise UserError("SLURM_JOB_ID is not set: this command runs inside a Slurm job; elsewhere: zerobench run SWEEP")
    task_id = environ.get("SLURM_ARRAY_TASK_ID")
    nodelist = environ.get("SLURM_JOB_NODELIST", "")
    # Only Slurm can read all the forms of lists that it writes, such as `n[1-2]`.
    text = run_client(["scontrol", "show", "hostnames", nodelist], _PATIENCE_S)
    if not text:
        raise UserError(f"SLURM_JOB_NODELIST: {nodelist!r}: scontrol show hostnames failed")
    return Allocation(
        job_id=int(job_id),
        task_id=int(task_id) if task_id else None,
        restarts=int(environ.get("SLURM_RESTART_COUNT") or 0),
        nodes=tuple(text.split()),
        cpus_per_node=int(environ.get("SLURM_CPUS_ON_NODE") or 1),
        gpus_per_node=int(environ.get("SLURM_GPUS_ON_NODE") or 0),
        hostname=socket.gethostname(),
    )


def down_nodes(nodes: Sequence[str], timeout_s: float = _LAST_WORD_S) -> list[str]:
    """Return those of `nodes` that Slurm reports as down or failing."""
    if not nodes:
        return []
    argv = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N %T"]
    lines = (line.split() for line in (run_client(argv, timeout_s) or "").splitlines())
    return sorted({words[0] for words in lines if len(words) == 2 and words[1].rstrip(_FLAGS) in _DOWN})


def boot_times(nodes: Sequence[str], timeout_s: float) -> dict[str, float]:
    """Return the boot time of each of `nodes`, Unix time; nodes unknown to Slurm are missing."""
    if not nodes:
        return {}
    text = run_client(["scontrol", "--oneliner", "show", "node", ",".join(nodes)], timeout_s) or ""
    return {name: float(at_s) for name, at_s in _BOOTED.findall(text)}
