"""Watch a user's own unmodified command from outside: NVML, host memory, its end; and write an ordinary run.

The command runs as given: its own process group and session, its arguments never through a shell, its streams passed
on, signals forwarded, its exit status returned. Its environment has one more variable, which marks its processes and
gives the folder to a tracker inside it.

The end is classified from evidence, as any trial's (zerobench.launch.run.outcome). A script that exits with 0 has
completed, tracked or not; so has one stopped by its user after all of its tracked steps were measured.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.common.redaction import redact_arguments
from zerobench.common.training_variables import training_variables
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import SCRIPT, TrialSpec
from zerobench.launch.machine.variables import values_to_redact
from zerobench.launch.run.outcome import (
    Ending,
    Stopped,
    append_last_lines,
    describe_exit,
    first_failure,
    last_account,
    shell_exit_code,
)
from zerobench.launch.run.stop import stop_on_signals
from zerobench.launch.run.trial_record import read_readable, trial_record, write_record
from zerobench.launch.tracking.command import NODE, Command, Show
from zerobench.launch.tracking.own_trial import LEDGER_ALONE, laid_out, lay_out_own_run, unknown_trial
from zerobench.rank.nvml.sampler import Sampler
from zerobench.records.folder import RunFolder, TrialFolder, write_whole
from zerobench.records.records import Failure, HostSummary, NvmlSummary, TrialRecord

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
    """Undo the conversions of an exit status on its way here."""
    # DeepSpeed's launch.py exits with a rank's negative status, of which eight bits arrive; shells add 128.
    numbers = set(signal.Signals) - {signal.SIGHUP}
    if code is not None and code > 128:
        if 256 - code in numbers:
            return code - 256
        if code - 128 in numbers:
            return 128 - code
    return code


BASELINE_S = 10.0
"""Seconds the sampler may take for its baseline before the command is started without one."""


@dataclass(frozen=True)
class WatchedRun:
    """A command that has ended and its run."""

    folder: RunFolder
    record: TrialRecord | None
    """None if it could not be written."""
    exit_code: int
    """The command's own; 128 plus the signal's number if one ended it."""
    fault: str | None = None
    """Reason for a missing record."""


def watch(command: Sequence[str], *, name: str | None, interval_s: float, reports: Path, show: Show) -> WatchedRun:
    """Run `command` and watch it to its end; its run is in `reports`, named `name` or after its script.

    Raises UserError if there is no such command, or the run's folder cannot be written.
    """
    if not command:
        raise UserError("COMMAND is missing; give it after two dashes: zerobench watch -- deepspeed train.py")
    theirs = training_variables()
    program = shutil.which(command[0], path=theirs.get("PATH"))
    if program is None:
        raise UserError(f"COMMAND: {command[0]!r} not found or not executable")
    trial = unknown_trial(name or script_name(command))
    safe = redact_arguments(command, values_to_redact(os.environ))
    run = lay_out_own_run(reports, trial, {"name": trial.trial_id, "command": safe}, safe)
    folder = run.trial(trial.trial_id)
    sampler = Sampler.start(folder, NODE, uuids=None, interval_s=interval_s)
    try:
        sampler.wait_ready(BASELINE_S)
        with stop_on_signals() as stop:
            process = Command(program, command, folder, show, theirs)
            ending, host, notes = process.run(stop)
    finally:
        nvml = sampler.stop()
    code = shell_exit_code(process.returncode)
    try:
        final = _settle_spec(folder, process)
        record = _record(run, folder, final, ending, nvml, host, notes, process.started_at_s)
    except OSError as error:  # a full disk: what the command did counts all the same
        return WatchedRun(run, None, code, f"{error.filename or folder.path}: {error.strerror or error}")
    return WatchedRun(run, record, code)


def script_name(command: Sequence[str]) -> str:
    """Return the name of the script in a command line, else of its program."""
    scripts = (Path(word).stem for word in command if word.endswith((".py", ".sh")) and not word.startswith("-"))
    return next(scripts, Path(command[0]).stem) or "script"


def _settle_spec(folder: TrialFolder, command: Command) -> TrialSpec:
    """Return the trial of the work: a tracker's description, else the ranks that were seen."""
    trial = TrialSpec.model_validate(json.loads(folder.spec.read_bytes()))
    if trial.strategy != SCRIPT:
        return trial
    trial = laid_out(trial, command.num_ranks, command.ranks_per_node)
    write_whole(folder.spec, trial.model_dump_json(indent=1))
    return trial


def _record(
    run: RunFolder,
    folder: TrialFolder,
    trial: TrialSpec,
    ending: Ending,
    nvml: NvmlSummary,
    host: HostSummary,
    notes: list[str],
    started_at_s: float,
) -> TrialRecord:
    status, failure, more = classify_script(ending)
    if trial.num_nodes > 1:
        more = [*more, f"host memory sampled on {host.hostname} only, one of {trial.num_nodes} nodes"]
    others, _ = read_readable(folder.nvml_summaries(), NvmlSummary)
    record = trial_record(
        trial,
        run.run_id,
        (status, failure),
        max(trial.world_size, len(ending.records)),
        started_at_s=started_at_s,
        ended_at_s=time.time(),
        exit_code=ending.exit_code,
        ranks_reported=len(ending.records),
        nvml=[nvml, *(summary for summary in others if summary.node != nvml.node)],
        host=[host],
        notes=[*notes, *more],
    )
    return write_record(folder, record)
