"""Runs simulated trials through one simulator process, several at a time, and formula trials in this one.

No launcher, no ranks, no GPU: what can go wrong is less than in a measured trial, and the record says it in the same
types. The simulator (zerobench.worker.simulator) is started with the first trial and ends with its standard input.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from pydantic import ValidationError

from zerobench.ds_config import file_notes
from zerobench.errors import UserError
from zerobench.folder import TrialFolder, write_whole
from zerobench.formulas import formula_record
from zerobench.records import Failure, RankRecord, Status, TrialRecord
from zerobench.run.logs import redact_logs
from zerobench.run.stop import Stop
from zerobench.spec.trial import Evidence, TrialSpec

SIMULATOR_MODULE = "zerobench.worker.simulator"
POLL_S = 0.25
_TAIL_LINES = 3

Started = Callable[[TrialSpec], None]
Ended = Callable[[TrialRecord], None]


def is_predicted(trial: TrialSpec) -> bool:
    """Whether a trial needs neither launcher nor device."""
    return trial.evidence in {Evidence.SIMULATED, Evidence.FORMULA}


def predict(
    trials: Sequence[tuple[TrialSpec, TrialFolder]],
    run_id: str,
    num_cpus: int,
    stop: Stop,
    started: Started,
    ended: Ended,
) -> None:
    """Run predicted trials, whose specs lie in their folders; each leaves its record there.

    Raises OSError: a folder cannot be written.
    """
    by_formula = [pair for pair in trials if pair[0].evidence is Evidence.FORMULA]
    simulated = [pair for pair in trials if pair[0].evidence is Evidence.SIMULATED]
    for trial, folder in by_formula:
        started(trial)
        ended(_by_formula(trial, folder, run_id))
    if simulated and not stop.asked:
        _simulate(simulated, run_id, min(num_cpus, len(simulated)), stop, started, ended)


def _by_formula(trial: TrialSpec, folder: TrialFolder, run_id: str) -> TrialRecord:
    """The trial's record; a trial that no formula is known for is skipped, and those after it go on."""
    begun_s = time.time()
    try:
        found = formula_record(trial)
    except UserError as error:
        record = TrialRecord(
            run_id=run_id,
            trial_id=trial.trial_id,
            config_hash=trial.config_hash,
            status=Status.SKIPPED,
            reason=str(error),
            rule="formula",
            ranks_expected=1,
        )
        write_whole(folder.record, record.model_dump_json(indent=1))
        return record
    write_whole(folder.rank_record(0), found.model_dump_json())
    return _finish(trial, folder, run_id, 0, begun_s)


def _simulate(
    trials: Sequence[tuple[TrialSpec, TrialFolder]],
    run_id: str,
    jobs: int,
    stop: Stop,
    started: Started,
    ended: Ended,
) -> None:
    by_path = {str(folder.path): (trial, folder) for trial, folder in trials}
    begun_s = time.time()
    with TemporaryFile() as errors, _simulator(jobs, errors) as process:
        for code, path in _answers(process, _lines(trials, started), stop):
            trial, folder = by_path.pop(path)
            ended(_finish(trial, folder, run_id, code, begun_s))
        left_with = None if stop.asked else process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    for trial, folder in by_path.values():
        if said and not folder.stderr.exists():  # it ended before it came to this trial
            write_whole(folder.stderr, said)
        ended(_finish(trial, folder, run_id, left_with, begun_s))


def _lines(trials: Sequence[tuple[TrialSpec, TrialFolder]], started: Started) -> Iterator[str]:
    """What the simulator is sent, a trial a line; a trial has started when its line is taken."""
    for trial, folder in trials:
        started(trial)
        write_whole(folder.command, f"{sys.executable} -m {SIMULATOR_MODULE}\n")
        yield f"{folder.path}\n"


def _send(process: subprocess.Popen[bytes], line: str) -> None:
    """A line to the simulator; one that is gone will be found out when its answers end."""
    if process.stdin is None:
        return
    try:
        process.stdin.write(os.fsencode(line))
        process.stdin.flush()
    except BrokenPipeError:
        return


@contextmanager
def _simulator(jobs: int, errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The process, in a session of its own, its own words in `errors`; nothing of it is left at the end."""
    command = [sys.executable, "-m", SIMULATOR_MODULE, "--jobs", str(jobs)]
    added = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DS_ACCELERATOR": "cpu"}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **added},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None and not pipe.closed:
                _close_quietly(pipe)


def _close_quietly(pipe: object) -> None:
    try:
        pipe.close()  # type: ignore[attr-defined] # a pipe of Popen's
    except BrokenPipeError:
        return


def _answers(process: subprocess.Popen[bytes], lines: Iterator[str], stop: Stop) -> Iterator[tuple[int, str]]:
    """Exit status and folder of each trial as it ends, until the simulator has closed its output or we must stop.

    `lines` go out as the pipe takes them: were all sent first, both sides could come to wait for each other.
    """
    if process.stdout is None or process.stdin is None:
        return
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while not stop.asked:
            ready = [key.fileobj for key, _ in selector.select(POLL_S)]
            if process.stdin in ready:
                line = next(lines, None)
                if line is None:
                    selector.unregister(process.stdin)
                    process.stdin.close()
                else:
                    _send(process, line)
            if process.stdout not in ready:
                continue
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                return
            *ended, text = (text + chunk).split(b"\n")
            for answer in ended:
                code, _, path = os.fsdecode(answer).partition(" ")
                yield int(code), path


def _finish(trial: TrialSpec, folder: TrialFolder, run_id: str, code: int | None, begun_s: float) -> TrialRecord:
    """The trial's record, written to its folder; `code` is None where someone stopped it."""
    redact_logs(folder)
    status, failure, reported = _outcome(trial, folder, code)
    record = TrialRecord(
        run_id=run_id,
        trial_id=trial.trial_id,
        config_hash=trial.config_hash,
        status=status,
        reason=failure.message if failure else None,
        failure=failure,
        exit_code=code,
        ranks_expected=1,
        ranks_reported=reported,
        started_at_s=begun_s,
        ended_at_s=time.time(),
        notes=file_notes(trial),
    )
    write_whole(folder.record, record.model_dump_json(indent=1))
    return record


def _outcome(trial: TrialSpec, folder: TrialFolder, code: int | None) -> tuple[Status, Failure | None, int]:
    path = folder.rank_record(trial.prediction.rank if trial.evidence is Evidence.SIMULATED else 0)
    if code is None:
        return Status.INTERRUPTED, Failure(message="stopped before it ended"), 0
    try:
        record = RankRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return *_without_record(trial, folder, code), 0
    return record.status, record.failure, 1


def _without_record(trial: TrialSpec, folder: TrialFolder, code: int) -> tuple[Status, Failure]:
    """What ended a simulation that left no record: a signal says it, or its last words."""
    if code == -signal.SIGALRM:
        return Status.TIMEOUT, Failure(message=f"not done after {trial.timeout_s:g} s")
    if code == -signal.SIGKILL:
        return Status.OUT_OF_HOST_MEMORY, Failure(message="the simulation was killed", evidence="SIGKILL")
    words = _last_words(folder.stderr)
    return Status.CRASH, Failure(message=f"the simulation ended with status {code}: {words}", evidence=words)


def _last_words(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return " | ".join(lines[-_TAIL_LINES:]) or "it said nothing"
