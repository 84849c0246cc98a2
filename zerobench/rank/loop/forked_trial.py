"""A trial in a fork of the simulator: its one rank in this process, or each of all its ranks in one more fork."""

import os
import sys
import traceback

from zerobench.config.derived.batch import limit_micro_batches
from zerobench.config.derived.step_plan import plan_steps
from zerobench.config.trial.trial import TrialSpec
from zerobench.rank.loop import with_room as room
from zerobench.rank.loop.launched import one_of
from zerobench.rank.loop.peer_ranks import play_peers
from zerobench.rank.loop.short_step import as_asked
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.progress import ProgressFile, Rank
from zerobench.records.records import RankRecord

AGAIN = room.AGAIN


def run_trial(folder: TrialFolder, *, with_room: bool) -> int:
    """Run one trial, its output into its folder; the exit status. `with_room`: it did not fit its GPU before."""
    for stream, path in ((1, folder.stdout), (2, folder.stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        trial = TrialSpec.model_validate_json(folder.spec.read_text(encoding="utf-8"))
        if trial.prediction.all_ranks:
            return play_peers(trial, lambda rank: _run_rank(trial, folder, rank, with_room=with_room))
        return _run_rank(trial, folder, one_of(trial), with_room=with_room)
    except BaseException:  # noqa: BLE001 - the process ends here, and says why
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run_rank(trial: TrialSpec, folder: TrialFolder, rank: Rank, *, with_room: bool) -> int:
    """Play one rank and keep its record; the exit status, AGAIN where its GPU was too small."""
    from zerobench.rank.ledger.failures import describe
    from zerobench.rank.loop.rank import RankRun

    if with_room:
        room.make_room(trial)
    run = RankRun(limit_micro_batches(trial), folder, rank, ProgressFile(folder, rank, len(plan_steps(trial))))

    def end(error: BaseException) -> int:
        run.record.status, run.record.failure = describe(error, run.marks, rank.rank, run.device)
        traceback.print_exception(error)
        return _keep(trial, folder, run.record, with_room=with_room)

    run.world.end = end
    try:
        run.run()
    except BaseException as error:  # noqa: BLE001 - whatever ended the rank is its result
        return end(error)
    return _keep(trial, folder, run.record, with_room=with_room)


def _keep(trial: TrialSpec, folder: TrialFolder, record: RankRecord, *, with_room: bool) -> int:
    kept, record = folder.rank_record(record.rank), as_asked(record, trial)
    if with_room and kept.exists():
        record = room.with_need(trial, RankRecord.model_validate_json(kept.read_bytes()), record)
    write_whole(kept, record.model_dump_json())
    if not with_room and room.may_be_played_again(trial, record):
        return AGAIN
    return 0 if record.failure is None else 1
