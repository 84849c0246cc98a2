"""Entry of one process of a TensorFlow trial: runs it, and always leaves a record.

The process ends with os._exit once all records exist: a process that leaves early ends TensorFlow's coordination
service or a peer's open call, and the others would fail after correct results.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from zerobench.common.rank_processes import leave
from zerobench.common.redaction import redact_text, secret_values
from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import ProgressFile, Rank
from zerobench.records.records import Failure, RankRecord

_PEERS_S = 30.0
"""Seconds to wait for the other processes' records."""
_LAST_S = 0.5
"""Seconds for which rank 0, which serves the others, outlives them."""


def main() -> None:
    """Run the process that the launcher's environment describes."""
    parser = argparse.ArgumentParser(prog="zerobench.rank.tensorflow", description=__doc__)
    parser.add_argument("--trial-folder", type=Path, required=True, help="folder that holds trial.json")
    parser.add_argument("--start", type=Path, required=True, help="folder that zerobench.rank.loop.start_files wrote")
    arguments = parser.parse_args()
    folder = TrialFolder(arguments.trial_folder)
    trial = TrialSpec.model_validate_json(folder.spec.read_text(encoding="utf-8"))
    stacks = folder.stacks(int(os.environ["RANK"])).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    leave(_run(trial, folder, arguments.start))


def _run(trial: TrialSpec, folder: TrialFolder, start: Path) -> int:
    number, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank = Rank(number, number, processes, socket.gethostname(), os.getpid())
    progress = ProgressFile(folder, rank, trial.steps.total)
    progress.say("import", -1, always=True)
    from zerobench.rank.tensorflow.rank import TensorflowRun
    from zerobench.rank.tensorflow.start import read_start

    run = TensorflowRun(trial, folder, read_start(start), rank, progress)
    try:
        run.run()
    except BaseException as error:  # noqa: BLE001 - whatever ended the rank is its result
        run.record.status, run.record.failure = _describe(error, number)
        _write(folder, run.record)
        print(run.record.failure.traceback, file=sys.stderr)  # noqa: T201 - for whoever reads the rank's stderr
        return 1
    _write(folder, run.record)
    _leave(folder, number, processes)
    return 0


def _describe(error: BaseException, rank: int) -> tuple[Status, Failure]:
    """Status and failure for an exception that ended the process."""
    secrets = secret_values(os.environ)
    first_line = redact_text((str(error).strip().splitlines() or [""])[0], secrets)[:300]
    status = Status.OUT_OF_HOST_MEMORY if isinstance(error, MemoryError) else Status.CRASH
    return status, Failure(
        rank=rank,
        message=f"{type(error).__name__}: {first_line}",
        exception=type(error).__name__,
        traceback=redact_text("".join(traceback.format_exception(error)), secrets)[-20_000:],
    )


def _leave(folder: TrialFolder, rank: int, processes: int) -> None:
    """Wait for the records of the others; rank 0 waits a little longer."""
    deadline = time.monotonic() + _PEERS_S
    while len(folder.rank_records()) < processes and time.monotonic() < deadline:
        time.sleep(0.05)
    if rank == 0:
        time.sleep(_LAST_S)


def _write(folder: TrialFolder, record: RankRecord) -> None:
    write_whole(folder.rank_record(record.rank), record.model_dump_json())


if __name__ == "__main__":
    main()
