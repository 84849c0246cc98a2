"""Slurm's states of jobs and array tasks, in one form for all versions of Slurm.

Slurm has a base state and flags (slurm.h, enum job_states and the JOB_* flags): up to 23.02 it prints one word, the
flag if there is one; from 23.11 on a list. The only question here is whether a task waits, has nodes, or is over.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Summary of a task's states."""

    WAITING = "waiting"
    """It will begin, or begin again."""
    ACTIVE = "active"
    """It has nodes; it may be starting or ending."""
    OVER = "over"
    """It will not begin again by itself."""


_ENDING = "COMPLETING"
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
_OVER = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
_OVER |= {"OUT_OF_MEMORY", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"}
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?")
_MOST_TASKS = 4_000_001
"""Slurm's own bound on MaxArraySize (slurm.conf(5))."""


@dataclass(frozen=True)
class TaskState:
    """State of one task of an array, or of one plain job; times are Unix times in seconds."""

    task_id: int | None
    """None for a job that is not an array."""
    states: tuple[str, ...]
    """Slurm's words: `RUNNING`; or a base state and its flags, `RUNNING`, `COMPLETING`."""
    reason: str | None = None
    """Slurm's reason for waiting or failing: `Resources`, `NonZeroExitCode`."""
    num_nodes: int | None = None
    nodes: str | None = None
    """Present or former nodes in Slurm's notation: `n[1-4]`."""
    restart_count: int | None = None
    """Number of requeues; None if Slurm did not report it."""
    start_s: float | None = None
    end_s: float | None = None
    """Time limit of a running task, end of one that is over."""
    preempt_s: float | None = None
    """Start of its preemption; None if it is not being preempted."""

    @property
    def state(self) -> str:
        """The single word shown to people."""
        return _ENDING if _ENDING in self.states else self.states[0] if self.states else "UNKNOWN"

    @property
    def stage(self) -> Stage:
        """Stage of its states; an unknown word counts as having nodes."""
        if _ENDING in self.states:
            return Stage.ACTIVE
        if not _WAITING.isdisjoint(self.states):
            return Stage.WAITING
        return Stage.ACTIVE if _OVER.isdisjoint(self.states) else Stage.OVER

    def time_left_s(self, now_s: float) -> float | None:
        """Seconds until its time limit; None if it does not run or has none."""
        if self.stage is not Stage.ACTIVE or self.end_s is None:
            return None
        return max(0.0, self.end_s - now_s)


def array_task_ids(text: str) -> Iterator[int]:
    """Read task ids in Slurm's notation: `3`, `0-2,7`, `4-20:4%2`.

    The number after `%` limits concurrent tasks; unreadable parts are skipped.
    """
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            continue
        first, last, step = (int(group) if group else None for group in match.groups())
        first = first or 0
        yield from range(first, min(first if last is None else last, _MOST_TASKS) + 1, step or 1)
