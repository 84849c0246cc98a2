"""Classify a simulation that left no record: by its exit status, its last output, the kernel's counters."""

import signal
from pathlib import Path

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.outcome import Outcome, describe_exit, describe_place
from zerobench.launch.run.quiet import no_progress, read_load
from zerobench.records.folder import TrialFolder
from zerobench.records.progress import Progress
from zerobench.records.records import Failure

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
