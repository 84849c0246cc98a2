"""Records with nothing measured, for tests of what is done with records."""

from typing import Any

from zerobench.records import Failure, Phase, RankRecord, Status, TrialRecord
from zerobench.spec.trial import TrialSpec


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
