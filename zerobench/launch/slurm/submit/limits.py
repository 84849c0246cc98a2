"""Slurm's limits: longest array, most jobs, longest time. Unknown limits do not bind.

MaxArraySize and MaxJobCount are the controller's (slurm.conf(5)), the time limit is the partition's, and the number of
jobs a user may have submitted is the accounting database's, which many clusters do not have or do not show.
"""

import getpass
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zerobench.common.errors import UserError, choices_for
from zerobench.launch.slurm.client import run_client
from zerobench.launch.slurm.options import SubmitOptions, read_time

CLIENT_TIMEOUT_S = 10.0
ACCOUNTING_TIMEOUT_S = 5.0
"""Accounting only improves the plan, so the wait is short."""

_SETTING = re.compile(r"^(\w+)[ \t]*+=(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Limits:
    """Limits of Slurm; None does not bind."""

    cluster: str | None = None
    """Slurm's ClusterName."""
    max_array_size: int = 1001
    """One more than the highest task number; this is Slurm's default."""
    max_job_count: int | None = None
    """Jobs that the controller holds at a time, of all users."""
    max_submit_jobs: int | None = None
    """Jobs that this user may still add; each task of an array counts."""
    max_time_s: int | None = None
    """For the trials' partition."""
    max_cpu_time_s: int | None = None
    """For the partition of predictions and the report."""

    @property
    def max_tasks(self) -> int | None:
        """Number of array tasks and jobs that may be submitted now."""
        return min((most for most in (self.max_job_count, self.max_submit_jobs) if most is not None), default=None)


def read_limits(options: SubmitOptions) -> Limits | None:
    """Read Slurm's limits; None if it does not answer.

    Raises UserError if there is no partition of the given name.
    """
    text = run_client(["scontrol", "show", "config"], CLIENT_TIMEOUT_S)
    if text is None:
        return None
    config = {name: value.strip() for name, value in _SETTING.findall(text)}
    times = partition_times(run_client(["sinfo", "--noheader", "--all", "--format=%P|%l"], CLIENT_TIMEOUT_S) or "")
    return Limits(
        cluster=config.get("ClusterName") or None,
        max_array_size=_count(config.get("MaxArraySize")) or Limits.max_array_size,
        max_job_count=_count(config.get("MaxJobCount")),
        max_submit_jobs=_submit_jobs_left(options),
        max_time_s=_time_limit(times, options.partition, "--partition"),
        max_cpu_time_s=_time_limit(times, options.cpu_partition or options.partition, "--cpu-partition"),
    )


def partition_times(text: str) -> dict[str, int | None]:
    """Parse `sinfo --format=%P|%l`: each partition's time limit in seconds; the default's name ends in `*`."""
    rows = (line.split("|") for line in text.splitlines())
    return {row[0].strip(): _seconds(row[1].strip()) for row in rows if len(row) == 2}


def submit_limits(associations: str, qualities: str, account: str | None, qos: str | None) -> Iterator[int]:
    """Yield the binding limits on submitted jobs: from the user's associations (Account|MaxSubmitJobs|DefaultQOS per
    line) and the quality of service (Name|MaxSubmitJobsPerUser|GrpSubmitJobs per line).
    """
    rows = [row for line in associations.splitlines() if len(row := line.split("|")) == 3]
    rows = [row for row in rows if account is None or row[0] == account]
    yield from _counts(row[1] for row in rows)
    names = {qos} if qos else {row[2] for row in rows}
    for line in qualities.splitlines():
        name, *limits = line.split("|")
        if name in names:
            yield from _counts(limits)


def _submit_jobs_left(options: SubmitOptions) -> int | None:
    """Return the jobs that the user may add to the queue; None if accounting sets no limit, or does not answer."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        return None
    ask = ["sacctmgr", "--noheader", "--parsable2", "show"]
    fields = "format=Account,MaxSubmitJobs,DefaultQOS"
    associations = run_client([*ask, "assoc", "where", f"user={user}", fields], ACCOUNTING_TIMEOUT_S)
    if not associations:
        return None
    qualities = run_client([*ask, "qos", "format=Name,MaxSubmitJobsPerUser,GrpSubmitJobs"], ACCOUNTING_TIMEOUT_S)
    most = min(submit_limits(associations, qualities or "", options.account, options.qos), default=None)
    if most is None:
        return None
    queued = run_client(["squeue", "--noheader", "--array", f"--user={user}", "--format=%i"], CLIENT_TIMEOUT_S)
    return max(0, most - len((queued or "").splitlines()))


def _time_limit(times: dict[str, int | None], partitions: str | None, option: str) -> int | None:
    """Return the shortest limit of the requested partitions (several are joined by commas), or of the default one."""
    by_name = {name.removesuffix("*"): limit for name, limit in times.items()}
    names = partitions.split(",") if partitions else [name.removesuffix("*") for name in times if name.endswith("*")]
    unknown = [name for name in names if name not in by_name]
    if unknown and by_name:
        hint = choices_for(unknown[0], by_name, "sinfo")
        raise UserError(f"{option}: {unknown[0]!r} is not a partition of this cluster; {hint}")
    return min((limit for name in names if (limit := by_name.get(name)) is not None), default=None)


def _seconds(text: str) -> int | None:
    """Read a partition's limit; None for `infinite` and unreadable text."""
    try:
        return read_time(text)
    except UserError:
        return None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _counts(texts: Iterable[str]) -> Iterator[int]:
    return (count for text in texts if (count := _count(text)) is not None)
