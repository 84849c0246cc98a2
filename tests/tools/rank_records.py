"""Records with nothing measured, for tests of what is done with records."""

from typing import Any

from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.progress import Progress
from zerobench.records.records import Failure, MemoryRow, RankRecord, TrialRecord


def rank_record(trial_id: str, rank: int = 0, **fields: Any) -> RankRecord:
    """Of a rank on a CPU that crashed alone, but for what `fields` say."""
    usual = {"local_rank": rank, "world_size": 1, "hostname": "here", "pid": 1, "status": Status.CRASH}
    usual |= {"device_type": "cpu", "device_name": "cpu", "micro_batch_size": 1}
    return RankRecord.model_validate({"trial_id": trial_id, "rank": rank, **usual, **fields})


def rank_of_two(rank: int, status: Status = Status.COMPLETED, message: str = "") -> RankRecord:
    """A rank that completed, or failed in its forward pass with a message."""
    failure = Failure(message=message, phase=Phase.FORWARD) if message else None
    return rank_record("t", rank, world_size=2, pid=100 + rank, status=status, failure=failure)


def trial_record(run_id: str, trial: TrialSpec, status: Status = Status.COMPLETED, **fields: Any) -> TrialRecord:
    """How a trial ended."""
    ids = {"run_id": run_id, "trial_id": trial.trial_id, "config_hash": trial.config_hash}
    return TrialRecord.model_validate({**ids, "status": status, "ranks_expected": trial.world_size, **fields})


def progress(rank: int, **fields: Any) -> Progress:
    """What a rank says while its steps are timed, of which the first is not over."""
    usual = {"pid": 1, "hostname": "here", "phase": "timed", "step_index": 0, "num_steps": 8, "memory_bytes": 1}
    return Progress.model_validate({"rank": rank, "updated_at_s": 0.0, **usual, **fields})


def ledger_row(
    step: StepKind, phase: Phase, place: Place, category: Category, at_peak_bytes: int | None, live_bytes: int = 0
) -> MemoryRow:
    """A row of the ledger; the category's own peak is the larger one."""
    own_bytes = None if at_peak_bytes is None else max(at_peak_bytes, live_bytes)
    where = {"step": step, "phase": phase, "place": place, "category": category}
    return MemoryRow(live_bytes=live_bytes, at_peak_bytes=at_peak_bytes, own_peak_bytes=own_bytes, **where)
