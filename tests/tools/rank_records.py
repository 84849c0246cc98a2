"""A rank's record with nothing measured, for tests of what is done with records."""

from typing import Any

from zerobench.records import RankRecord, Status


def rank_record(trial_id: str, rank: int = 0, **fields: Any) -> RankRecord:
    """Of a rank on a CPU that crashed alone, but for what `fields` say."""
    usual = {"local_rank": rank, "world_size": 1, "hostname": "here", "pid": 1, "status": Status.CRASH}
    usual |= {"device_type": "cpu", "device_name": "cpu", "micro_batch_size": 1}
    return RankRecord.model_validate({"trial_id": trial_id, "rank": rank, **usual, **fields})
