"""A trial's record, built in one place for every runner from the files its ranks and samplers left.

It is written whatever ranks and samplers left, some of which may have been killed while writing; unreadable files are
noted in it. The store is strict instead, because a report must not silently lack a record.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.records.folder import TrialFolder, write_whole
from zerobench.records.records import Failure, RankRecord, TrialRecord

Model = TypeVar("Model", bound=BaseModel)


def readable_ranks(folder: TrialFolder) -> list[RankRecord]:
    """Return the readable rank records of a trial."""
    return read_readable(folder.rank_records(), RankRecord)[0]


def read_readable(paths: Iterable[Path], model: type[Model]) -> tuple[list[Model], list[str]]:
    """Return the readable documents at `paths`, and a line for each unreadable one."""
    read, unreadable = [], []
    for path in paths:
        try:
            read.append(model.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            unreadable.append(f"{path.name} cannot be read: {str(error).splitlines()[0]}")
    return read, unreadable


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
