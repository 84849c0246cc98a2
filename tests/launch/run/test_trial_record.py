"""Records of trials, as all that run trials write them."""

from collections.abc import Callable
from pathlib import Path

from zerobench.common.vocabulary import Status
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.trial_record import skipped_record, trial_record, write_record
from zerobench.records.folder import TrialFolder
from zerobench.records.records import Failure, TrialRecord

MakeTrial = Callable[..., TrialSpec]


def test_a_failure_gives_its_message_as_the_reason(make_trial: MakeTrial) -> None:
    trial, failure = make_trial(), Failure(message="rank 1: torn")
    record = trial_record(trial, "run", (Status.CRASH, failure), 2, exit_code=1)
    assert (record.reason, record.failure, record.config_hash) == ("rank 1: torn", failure, trial.config_hash)
    assert trial_record(trial, "run", (Status.COMPLETED, None), 2).reason is None


def test_a_skipped_trial_has_the_rules_reason_and_no_failure_and_is_read_back(
    make_trial: MakeTrial, tmp_path: Path
) -> None:
    folder = TrialFolder(tmp_path)
    record = write_record(folder, skipped_record(make_trial(), "run", "checkpoint_room", "no room", 2))
    assert (record.status, record.rule, record.reason, record.failure) == (
        Status.SKIPPED,
        "checkpoint_room",
        "no room",
        None,
    )
    assert TrialRecord.model_validate_json(folder.record.read_bytes()) == record
