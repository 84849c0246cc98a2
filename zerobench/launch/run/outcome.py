"""Classify a trial's end from evidence: rank records, deaths, the kernel's counters; never from log text.

If several ranks failed, the first one's reason is the trial's: the others fell with it. A killed rank leaves no record,
and its peers may record "connection closed" before we notice the death; so a death by a signal that no peer can cause
precedes any crash that a peer recorded within `NEWS_DELAY_S`.

A simulation is classified likewise, by its exit status, its last output and the same counters.
"""

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.executor import Interruption
from zerobench.launch.run.quiet import Load, no_progress, read_load
from zerobench.launch.run.ranks import RankDeath
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Progress
from zerobench.records.records import Failure, HostStanding, RankRecord

Outcome = tuple[Status, Failure | None]

NEWS_DELAY_S = 2.0
"""Seconds by which we may notice a death later than a peer's socket, on a loaded machine."""

_OWN_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
"""Signals caused by the rank itself. Not SIGABRT: NCCL's watchdog aborts a rank when its peer dies. Not SIGTERM: the
launcher ends the other ranks with it.
"""

_MAY_HIDE_A_KILL = {None, 0, -signal.SIGKILL, -signal.SIGTERM}
"""Exit statuses compatible with the kernel's SIGKILL: none; 0, deepspeed's launcher's if the process below it was
killed; and SIGTERM, which ends the other ranks and which srun reports since it is higher. Any other status means the
process was not killed, whatever the kernel did to others meanwhile.
"""


class Stopped(StrEnum):
    """The runner's reason for ending a trial."""

    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    SETTLED = "settled"
    """Its records decide the outcome, and the launcher still did not end."""


@dataclass(frozen=True)
class Ending:
    """All evidence, once a trial's processes are gone."""

    ranks_expected: int
    exit_code: int | None
    """The launcher's; None if the runner ended it."""
    first_rank_exit: int | None = None
    """The first ended rank's status derived from it, as in subprocess."""
    records: Sequence[RankRecord] = ()
    written_at_s: Mapping[int, float] = field(default_factory=dict)
    """Unix time of each rank's record."""
    outlived_by: Sequence[int] = ()
    """Ranks still running when the launcher ended; normally it ends after them."""
    deaths: Sequence[RankDeath] = ()
    progress: Sequence[Progress] = ()
    """The last progress of each rank."""
    stopped: Stopped | None = None
    timeout_s: float = 0.0
    load: Load | None = None
    """Load of the machine when the runner ended the trial for lack of progress."""
    oom: str | None = None
    """Out-of-memory kill counters that rose during the trial."""
    stacks: Mapping[str, str] = field(default_factory=dict)
    """Python stacks by rank, if requested."""
    last_lines: str = ""
    """The end of the output: shown to people, never evidence."""

    @property
    def missing(self) -> list[int]:
        """Ranks without a record."""
        held = {record.rank for record in self.records}
        return [rank for rank in range(self.ranks_expected) if rank not in held]


def classify(ending: Ending) -> Outcome:
    """Return the trial's status and, unless it completed, the failure."""
    if not ending.missing and all(record.status is Status.COMPLETED for record in ending.records):
        return Status.COMPLETED, None
    if ending.stopped is Stopped.INTERRUPTED:
        return Status.INTERRUPTED, Failure(message="stopped before its end")
    rules = (first_failure, _timeout, _launcher_killed, _killed_unseen, _launcher_fault)
    return next((outcome for rule in rules if (outcome := rule(ending))), None) or _left_no_record(ending)


def first_failure(ending: Ending) -> Outcome | None:
    """Return the earliest record or death that can be a cause."""
    # Deaths that may be a cause: of ranks without a record, neither clean nor by the launcher's SIGTERM.
    innocent = {None, 0, -signal.SIGTERM}
    deaths = [d for d in ending.deaths if d.rank in ending.missing and d.exit_code not in innocent]
    slack = NEWS_DELAY_S if any(-(death.exit_code or 0) in _OWN_SIGNALS for death in deaths) else 0.0
    events: list[tuple[float, int, Outcome]] = [(death.at_s, death.rank, _death(death, ending)) for death in deaths]
    for record in ending.records:
        if record.status is not Status.COMPLETED:
            late = slack if record.status is Status.CRASH else 0.0
            events.append((ending.written_at_s.get(record.rank, 0.0) + late, record.rank, _recorded(record, ending)))
    return min(events)[2] if events else None


def _recorded(record: RankRecord, ending: Ending) -> Outcome:
    failure = record.failure or Failure(message=f"ended as {record.status} without a reason")
    message = failure.message if failure.rank is not None else f"rank {record.rank}: {failure.message}"
    line = " ".join(message.split())
    fields = {"rank": record.rank, "message": line}
    if record.status is Status.OUT_OF_HOST_MEMORY and failure.host_standing is None:  # too little was left to tell it
        fields["host_standing"] = _account_of(record.rank, ending)
    return record.status, failure.model_copy(update=fields)


def _death(death: RankDeath, ending: Ending) -> Outcome:
    if death.exit_code == -signal.SIGKILL and ending.oom:
        return _out_of_host_memory(death.rank, ending)
    return Status.CRASH, Failure(
        rank=death.rank,
        message=f"rank {death.rank} {describe_exit(death.exit_code)}{_during(death.rank, ending)} without a record",
        host_standing=_account_of(death.rank, ending) if death.exit_code == -signal.SIGKILL else None,
        evidence=append_last_lines(f"exit status {death.exit_code}", ending),
    )


def _timeout(ending: Ending) -> Outcome | None:
    if ending.stopped is not Stopped.TIMEOUT:
        return None
    places = "; ".join(f"rank {p.rank}{_during(p.rank, ending)}" for p in ending.progress[:8]) or "no rank had reported"
    return Status.TIMEOUT, Failure(
        message=no_progress(ending.timeout_s, places, ending.load),
        evidence=append_last_lines(f"limit {ending.timeout_s:g} s", ending),
        stacks=dict(ending.stacks),
    )


def _launcher_killed(ending: Ending) -> Outcome | None:
    """Return an outcome if the launcher, or a process below it, was killed before ranks that had started."""
    # The launcher's own status is no evidence: deepspeed's is 0 if the process below it was killed.
    left = [rank for rank in ending.outlived_by if rank in ending.missing]
    if not left:
        return None
    ranks = "; ".join(f"rank {rank}{_during(rank, ending)}" for rank in left[:8])
    if ending.oom and ending.exit_code in _MAY_HIDE_A_KILL:
        message = f"the launcher was killed by the kernel (out of host memory), leaving {ranks}"
        account = last_account(word for word in ending.progress if word.rank in left)
        return Status.OUT_OF_HOST_MEMORY, Failure(message=message, host_standing=account, evidence=ending.oom)
    return Status.LAUNCHER_FAULT, Failure(
        message=f"the launcher {describe_exit(ending.exit_code)} before its ranks: it or one of its processes "
        f"was killed, leaving {ranks}",
        evidence=append_last_lines(f"launcher exit status {ending.exit_code}", ending),
    )


def _killed_unseen(ending: Ending) -> Outcome | None:
    """Return an outcome if the kernel killed for lack of memory and a rank vanished with an unknown exit status."""
    if ending.first_rank_exit not in _MAY_HIDE_A_KILL:
        return None
    known = {death.rank for death in ending.deaths if death.exit_code is not None}
    unseen = [rank for rank in ending.missing if rank not in known]
    return _out_of_host_memory(unseen[0], ending) if ending.oom and unseen else None


def _out_of_host_memory(rank: int, ending: Ending) -> Outcome:
    return Status.OUT_OF_HOST_MEMORY, Failure(
        rank=rank,
        message=f"rank {rank} was killed by the kernel (out of host memory){_during(rank, ending)}",
        host_standing=_account_of(rank, ending),
        evidence=ending.oom,
    )


def _account_of(rank: int, ending: Ending) -> HostStanding | None:
    """Last memory account of a killed rank."""
    # Not every out-of-memory killer is the kernel, so any SIGKILL counts.
    return last_account(word for word in ending.progress if word.rank == rank)


def last_account(words: Iterable[Progress]) -> HostStanding | None:
    """Last memory account of the rank that held most of the host: the kernel kills without warning."""
    accounts = [(word.host_standing, word.rank) for word in words if word.host_standing is not None]
    if not accounts:
        return None
    account, rank = max(accounts, key=lambda item: item[0].total_bytes)
    return account.model_copy(update={"at": f"{account.at} of rank {rank}", "is_last_account": True})


def _launcher_fault(ending: Ending) -> Outcome | None:
    if ending.progress or ending.records:
        return None
    return Status.LAUNCHER_FAULT, Failure(
        message=f"the launcher {describe_exit(ending.exit_code)} before any rank reported{_last_word(ending)}",
        evidence=append_last_lines(f"launcher exit status {ending.exit_code}", ending),
    )


def interrupted(outcome: Outcome, ask: Callable[[], Interruption | None]) -> Outcome:
    """Return `outcome`, or the interruption that may be why the trial did not complete, from `ask`."""
    status, failure = outcome
    # An interruption causes neither of these.
    if status in {Status.COMPLETED, Status.OUT_OF_DEVICE_MEMORY, Status.OUT_OF_HOST_MEMORY}:
        return outcome
    taken = ask()
    if taken is None:
        return outcome
    seen = f"{taken.evidence or taken.message}; the ranks ended: {failure.message if failure else status}"
    return taken.status, Failure(message=taken.message, evidence=seen)


def _left_no_record(ending: Ending) -> Outcome:
    """Return the outcome of ranks that had started and are gone."""
    # The launcher's exit status is that of the first rank it found dead.
    code = ending.first_rank_exit
    ranks = ", ".join(str(rank) for rank in ending.missing[:8])
    return Status.CRASH, Failure(
        rank=ending.missing[0] if len(ending.missing) == 1 else None,
        message=f"no record from rank {ranks}: the first to end {describe_exit(code)}{_last_word(ending)}",
        evidence=append_last_lines(f"launcher exit status {ending.exit_code}", ending),
    )


def shell_exit_code(returncode: int) -> int:
    """Return a shell's exit status for subprocess's `returncode`: 128 plus the signal's number if one ended it."""
    return 128 - returncode if returncode < 0 else returncode


def describe_exit(code: int | None) -> str:
    """Word an exit status as the verb of a sentence."""
    if code is None:
        return "ended"
    if code < 0 and -code in set(signal.Signals):
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with {code}"


def _during(rank: int, ending: Ending) -> str:
    """Return ` in <phase>` for the last progress of `rank`; empty if it never reported."""
    return next((f" in {describe_place(word)}" for word in ending.progress if word.rank == rank), "")


def describe_place(word: Progress) -> str:
    """Return the phase and step of a rank's progress."""
    in_a_step = 0 <= word.step_index < word.num_steps
    return word.phase + (f" (step {word.step_index + 1} of {word.num_steps})" if in_a_step else "")


def _last_word(ending: Ending) -> str:
    """Return the last output line as a hint for people."""
    lines = ending.last_lines.strip().splitlines()
    return f"; last line: {lines[-1].strip()[:200]}" if lines else ""


def append_last_lines(fact: str, ending: Ending) -> str:
    """Append the end of the output to `fact`, for people."""
    return f"{fact}; last lines:\n{ending.last_lines}" if ending.last_lines else fact


_TAIL_LINES = 3
INTERRUPTED: Outcome = Status.INTERRUPTED, Failure(message="stopped before its end")


def died(code: int, folder: TrialFolder, oom: str | None) -> Outcome:
    """Return the outcome of a fork that ended with `code`; `oom` names out-of-memory counters that rose meanwhile."""
    if code < 0:
        return _killed("the simulation", code, oom)
    words = _last_words(folder.stderr)
    return Status.CRASH, Failure(message=f"the simulation ended with status {code}: {words}", evidence=words)


def simulator_died(code: int, words: str, oom: str | None) -> Outcome:
    """Return the outcome of a trial whose simulator ended; `words` is the simulator's error output."""
    if code >= 0 and words.strip():
        last = words.strip().splitlines()[-1]
        return Status.CRASH, Failure(message=f"the simulator {describe_exit(code)}: {last}", evidence=words)
    return _killed("the simulator", code, oom)


def quiet_for(trial: TrialSpec, word: Progress | None) -> Outcome:
    """Return the outcome of a trial without progress after `word` for its whole timeout."""
    place = "no progress reported" if word is None else f"in {describe_place(word)}"
    return Status.TIMEOUT, Failure(message=no_progress(trial.timeout_s, place, read_load()))


def _killed(who: str, code: int, oom: str | None) -> Outcome:
    if code == -signal.SIGKILL and oom:
        return Status.OUT_OF_HOST_MEMORY, Failure(
            message=f"{who} was killed by the kernel (out of host memory)", evidence=oom
        )
    return Status.CRASH, Failure(message=f"{who} {describe_exit(code)}", evidence=f"exit status {code}")


def _last_words(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return " | ".join(lines[-_TAIL_LINES:]) or "no output"
