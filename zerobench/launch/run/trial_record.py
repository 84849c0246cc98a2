"""A trial's record, built in one place for every runner."""

from typing import Any

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import Failure, TrialRecord


def trial_record(
    trial: TrialSpec, run_id: str, outcome: tuple[Status, Failure | None], ranks_expected: int, **fields: Any
) -> TrialRecord:
    """Build the record of `trial` with `outcome`; `fields` are further fields of TrialRecord."""
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
    """Build the record of a trial that is not run."""
    return trial_record(trial, run_id, (Status.SKIPPED, None), ranks_expected, rule=rule, reason=reason)


def write_record(folder: TrialFolder, record: TrialRecord) -> TrialRecord:
    """Write `record` into its folder and return it. Raises OSError if the folder cannot be written."""
    write_whole(folder.record, record.model_dump_json(indent=1))
    return record
