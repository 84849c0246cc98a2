"""Classify the end of a user's own script from evidence, as any trial's (zerobench.launch.run.outcome).

A script that exits with 0 has completed, tracked or not. So has one stopped by its user after all of its tracked steps
were measured.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from zerobench.common.vocabulary import Status
from zerobench.launch.run.outcome import Ending, Stopped, append_last_lines, describe_exit, first_failure, last_account
from zerobench.launch.tracking.own_run import LEDGER_ALONE
from zerobench.records.records import Failure

ScriptOutcome = tuple[Status, Failure | None, list[str]]
"""Status, failure unless it completed, and notes."""


def classify_script(ending: Ending) -> ScriptOutcome:
    """Return the status of a watched script."""
    failed = [record for record in ending.records if record.status is not Status.COMPLETED]
    if ending.stopped is Stopped.INTERRUPTED:
        is_whole = not any(LEDGER_ALONE in record.notes for record in ending.records)
        return _interrupted(tracked=bool(ending.records) and is_whole and not failed and not ending.missing)
    code = _real_code(ending.exit_code)
    if code == 0:
        notes = [f"rank {record.rank} recorded a failure, but the script succeeded" for record in failed]
        return Status.COMPLETED, None, notes
    if ending.oom and code == -signal.SIGKILL:
        message = "a process of the script was killed by the kernel (out of host memory)"
        account = last_account(ending.progress)
        return Status.OUT_OF_HOST_MEMORY, Failure(message=message, host_standing=account, evidence=ending.oom), []
    # A record of tracked steps that went well says nothing of how the rank's process ended later.
    cause = first_failure(replace(ending, records=failed))
    if cause is not None:
        return *cause, []
    who = "the command" if code == ending.exit_code else "the first process to fail"
    message = f"{who} {describe_exit(code)}"
    evidence = append_last_lines(f"exit status {ending.exit_code}", ending)
    account = last_account(ending.progress) if code == -signal.SIGKILL else None
    return Status.CRASH, Failure(message=message, host_standing=account, evidence=evidence), []


def _interrupted(*, tracked: bool) -> ScriptOutcome:
    if tracked:
        return Status.COMPLETED, None, ["the script was stopped after its last tracked step"]
    return Status.INTERRUPTED, Failure(message="stopped before its end"), []


def _real_code(code: int | None) -> int | None:
    """Undo exit status conversions: launch.py exits with a rank's negative status truncated to eight bits; shells add
    128.
    """
    numbers = set(signal.Signals) - {signal.SIGHUP}
    if code is not None and code > 128:
        if 256 - code in numbers:
            return code - 256
        if code - 128 in numbers:
            return 128 - code
    return code
