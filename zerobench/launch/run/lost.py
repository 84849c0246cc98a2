"""Classify trials that started and left no record, and make them ready to run again.

A runner records how a trial ended. One that is killed with its trial (a node that went down, a preempted job) cannot,
so the next one does it, from the ranks' records and from what the executor knows of the machine's end.
"""

import shutil
import time
from collections.abc import Callable
from functools import partial

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.run import tree
from zerobench.launch.run.executor import Executor, Interruption
from zerobench.launch.run.launcher import launched_processes
from zerobench.launch.run.logs import redact_logs
from zerobench.launch.run.recovery import remove_checkpoints
from zerobench.launch.run.trial_record import readable_ranks, trial_record, write_record
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Failure, Start, TrialRecord, read_or_none
from zerobench.records.store import Run


def is_begun(folder: TrialFolder) -> bool:
    """Return True if the trial was started, finished or not."""
    return folder.command.exists() or folder.start.exists()


def read_start(folder: TrialFolder) -> Start | None:
    """Return the runner's note of the trial's start; None if missing or torn."""
    return read_or_none(folder.start, Start)


def close(run: Run, trial: TrialSpec, folder: TrialFolder, lost: Callable[[Start | None], Interruption]) -> TrialRecord:
    """Record the end of a trial whose runner did not, with the cause from `lost`; the caller holds the trial.

    Raises OSError if the folder cannot be written.
    """
    start = read_start(folder)
    ranks = readable_ranks(folder)
    expected = launched_processes(trial)
    whole = trial.checkpoint is None or trial.evidence is not Evidence.MEASURED  # else a second launch was to come
    completed = whole and len(ranks) == expected and all(rank.status is Status.COMPLETED for rank in ranks)
    cause = Interruption(Status.COMPLETED, "") if completed else lost(start)
    redact_logs(folder)
    failure = Failure(message=cause.message, evidence=cause.evidence) if cause.message else None
    # No later than now, whatever clock the file system has.
    paths = [*folder.path.glob("*"), *(folder.path / "logs").glob("*")]
    last_s = max((path.stat().st_mtime for path in paths if path != folder.lock), default=None)
    last_sign_s = None if last_s is None else min(last_s, time.time())
    record = trial_record(
        trial,
        run.run_id,
        (cause.status, failure),
        expected,
        ranks_reported=len(ranks),
        started_at_s=start.started_at_s if start else None,
        ended_at_s=last_sign_s,
        nodes=start.nodes if start else [],
        job=start.job if start else None,
        notes=["its runner ended before writing this record; end time: last sign of life"],
    )
    return write_record(folder, record)


def type_interruption(
    record: TrialRecord, folder: TrialFolder, taken: Callable[[], Interruption | None]
) -> TrialRecord:
    """Return the record of a stopped prediction with the interruption that `taken` reports, as for measured trials.

    Raises OSError if the folder cannot be written.
    """
    cause = taken() if record.status is Status.INTERRUPTED else None
    if cause is None:
        return record
    failure = Failure(message=cause.message, evidence=cause.evidence)
    typed = record.model_copy(update={"status": cause.status, "reason": cause.message, "failure": failure})
    return write_record(folder, typed)


def renew(run: Run, trial: TrialSpec, folder: TrialFolder, executor: Executor) -> None:
    """If the trial was started before, end its remaining processes and move its files aside, with a record."""
    if not is_begun(folder) and not folder.record.exists():
        return
    for launch in (folder, folder.resumed):
        tree.end(partial(tree.members, str(launch.path)))
    remove_checkpoints(trial, folder)
    if not folder.record.exists():
        close(run, trial, folder, executor.lost)
    shelf = run.folder.path / "set_aside"
    # The command file moves last: as long as it exists, the trial counts as started, and an interrupted move is
    # finished later.
    aside = shelf / f"{folder.path.name}.{len(list(shelf.glob(f'{folder.path.name}.*'))) + 1}"
    aside.mkdir(parents=True)
    stays = {folder.spec, folder.ds_config, folder.lock, folder.command}
    for path in [*(p for p in folder.path.iterdir() if p not in stays), folder.command]:
        if path.exists():
            path.rename(aside / path.name)
    shutil.copy(folder.spec, aside)
