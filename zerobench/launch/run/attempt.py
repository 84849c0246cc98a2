"""One trial from its folder to its record: start, watch, end, classify."""

from __future__ import annotations

import os
import time
from pathlib import Path

from zerobench.common.vocabulary import Status
from zerobench.config.deepspeed import file_notes
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.machine.compile_locks import free_stale_locks
from zerobench.launch.run.executor import Executor
from zerobench.launch.run.launched import LaunchedTrial
from zerobench.launch.run.launcher import command_text, launched_processes
from zerobench.launch.run.logs import redact_logs
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.oom import read_oom_counters
from zerobench.launch.run.outcome import Ending, Stopped, classify, interrupted
from zerobench.launch.run.quiet import read_load
from zerobench.launch.run.ranks import written_at_s
from zerobench.launch.run.recovery import run_twice
from zerobench.launch.run.setup import renew_swap_folder
from zerobench.launch.run.stop import Stop
from zerobench.launch.run.trial_record import read_readable, trial_record, write_record
from zerobench.records.folder import TrialFolder, remove_outside, write_whole
from zerobench.records.records import Failure, NvmlSummary, RankRecord, Start, TrialRecord
from zerobench.records.swap_folder import swap_folder

LAST_LINES = 15
TAIL_BYTES = 8192


def run_trial(
    trial: TrialSpec, folder: TrialFolder, run_id: str, executor: Executor, stop: Stop, observer: Observer
) -> TrialRecord:
    """Run `trial`, whose spec is in `folder`, and return its record, which is also written there.

    Raises OSError if the folder cannot be written. Raises UserError if the user's devices or hosts are not enough.
    """

    def launch(spec: TrialSpec, where: TrialFolder) -> TrialRecord:
        return _launch_once(spec, where, run_id, executor, stop, observer)

    saves = trial.checkpoint is not None and trial.evidence is Evidence.MEASURED
    record = run_twice(trial, folder, run_id, launch, stop) if saves else launch(trial, folder)
    return write_record(folder, record)


def _launch_once(
    trial: TrialSpec, folder: TrialFolder, run_id: str, executor: Executor, stop: Stop, observer: Observer
) -> TrialRecord:
    """Start the ranks of `trial` once and return the record of how they ended."""
    expected = launched_processes(trial)
    launch = executor.launch(trial, folder)
    write_whole(folder.command, command_text(launch.argv, launch.added))
    launched = LaunchedTrial(launch, folder)
    renew_swap_folder(trial, folder)
    _remove_swap_folder(trial, folder)
    oom_before = read_oom_counters()
    started_at_s = time.time()
    note_start(trial, folder, executor, started_at_s)
    with launched:
        stopped = launched.wait(stop, trial.timeout_s, expected, executor.settle_s, observer.trial_progress)
        load = read_load() if stopped is Stopped.TIMEOUT else None
        deaths = launched.deaths() if stopped else ()  # what is ended after this is our doing, and no cause
        stacks = launched.dump_stacks(stop) if stopped is Stopped.TIMEOUT else {}
        exit_code = launched.exit_code
        launched.end()
    _remove_swap_folder(trial, folder)
    deaths = deaths if stopped else launched.deaths()
    locks = [] if exit_code == 0 or launch.elsewhere else free_stale_locks(os.environ)
    redact_logs(folder)
    records, unreadable = read_readable(folder.rank_records(), RankRecord)
    ending = Ending(
        ranks_expected=expected,
        exit_code=exit_code,
        first_rank_exit=executor.first_rank_exit(exit_code),
        records=records,
        written_at_s=written_at_s(folder, (r.rank for r in records), started_at_s, launched.seen_at_s),
        progress=launched.watch.look(),
        outlived_by=launched.outlived_by,
        deaths=deaths,
        stopped=stopped,
        timeout_s=trial.timeout_s,
        load=load,
        oom=read_oom_counters().since(oom_before),
        stacks=stacks,
        last_lines=last_lines(folder),
    )
    notes = [*launched.notes, *locks, *unreadable]
    record = _record(trial, folder, run_id, ending, notes, executor)
    return record.model_copy(update={"started_at_s": started_at_s, "ended_at_s": time.time()})


def note_start(trial: TrialSpec, folder: TrialFolder, executor: Executor, started_at_s: float) -> None:
    """Write down the runner of the trial: if the runner is killed, the next one knows where to look for the cause.

    Raises OSError if the folder cannot be written.
    """
    start = Start(
        trial_id=trial.trial_id,
        started_at_s=started_at_s,
        runner=f"process {os.getpid()} on {os.uname().nodename}",
        nodes=executor.nodes(trial),
        job=executor.job,
        job_ends_at_s=executor.job_ends_at_s,
    )
    write_whole(folder.start, start.model_dump_json(indent=1))


def _remove_swap_folder(trial: TrialSpec, folder: TrialFolder) -> None:
    """Delete the files DeepSpeed swapped to this node's disk."""
    # DeepSpeed leaves its swap files behind, and the next trial would read them.
    path = swap_folder(trial, folder)
    if path is not None:
        remove_outside(Path(path))


def not_started(trial: TrialSpec, folder: TrialFolder, run_id: str, failure: Failure) -> TrialRecord:
    """Write and return the record of a trial that is known beforehand to crash."""
    now_s = time.time()
    outcome = Status.CRASH, failure
    record = trial_record(trial, run_id, outcome, launched_processes(trial), started_at_s=now_s, ended_at_s=now_s)
    return write_record(folder, record)


def _record(
    trial: TrialSpec, folder: TrialFolder, run_id: str, ending: Ending, notes: list[str], executor: Executor
) -> TrialRecord:
    status, failure = interrupted(classify(ending), executor.interruption)
    nvml, unreadable = read_readable(folder.nvml_summaries(), NvmlSummary)
    if ending.stopped is Stopped.SETTLED:
        notes = [*notes, "the launcher did not exit and was killed"]
    elif failure is None and ending.exit_code:
        notes = [*notes, f"the launcher exited with {ending.exit_code} after every rank had completed"]
    return trial_record(
        trial,
        run_id,
        (status, failure),
        ending.ranks_expected,
        exit_code=ending.exit_code,
        ranks_reported=len(ending.records),
        nvml=nvml,
        nodes=executor.nodes(trial),
        job=executor.job,
        notes=[*file_notes(trial), *notes, *unreadable],
    )


def last_lines(folder: TrialFolder) -> str:
    """Return the end of the output of the launcher and of each rank, for people."""
    parts = []
    for path in [folder.stderr, *sorted((folder.path / "logs").glob("*.log"))]:
        lines = _tail(path)
        if lines:
            parts.append(f"== {path.name}\n{lines}")
    return "\n".join(parts[:8])


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-LAST_LINES:])
