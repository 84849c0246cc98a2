"""A trial's record: what trial and run it is of and how it ended, said in one place for all that run trials."""

from typing import Any

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import Failure, TrialRecord


def trial_record(
    trial: TrialSpec, run_id: str, outcome: tuple[Status, Failure | None], ranks_expected: int, **fields: Any
) -> TrialRecord:
    """The record of `trial` that came to `outcome`; `fields` are what else is known, by TrialRecord's names."""
    status, failure = outcome
    return TrialRecord(
        run_id=run_id,
        trial_id=trial.trial_id,
        config_hash=trial.config_hash,
        status=status,
        failure=failure,
        ranks_expected=ranks_expected,
        **{"reason": failure.message if failure else None, **fields},
    )


def skipped_record(trial: TrialSpec, run_id: str, rule: str, reason: str, ranks_expected: int) -> TrialRecord:
    """The record of a trial that is not run."""
    return trial_record(trial, run_id, (Status.SKIPPED, None), ranks_expected, rule=rule, reason=reason)


def write_record(folder: TrialFolder, record: TrialRecord) -> TrialRecord:
    """`record`, once it lies in its folder. Raises OSError: the folder cannot be written."""
    write_whole(folder.record, record.model_dump_json(indent=1))
    return record
