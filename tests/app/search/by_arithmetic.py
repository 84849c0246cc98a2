"""Predictions by the sample's arithmetic in place of the simulator, which takes seconds a trial."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.report.documents.run import predicted_rank
from tests.tools.laid_out import laid_out
from tests.tools.rank_records import trial_record
from zerobench.common.vocabulary import Status
from zerobench.config.sweep.expand import PlannedTrial
from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.run.observer import Observer
from zerobench.launch.run.runner import RunResult
from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.records import Failure


def predict_by_arithmetic(
    planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], reports: Path, _: Observer
) -> RunResult:
    """What zerobench.app.search.predict leaves on disk."""
    run = laid_out(reports / sweep["name"], planned, sweep)
    for item in planned:
        if item.skipped is None:
            complete(run, item.trial)
    return RunResult(run)


def extend_by_arithmetic(
    run: RunFolder, planned: Sequence[PlannedTrial], sweep: Mapping[str, Any], _: Observer
) -> RunResult:
    """The same of zerobench.app.search.predict.extend."""
    laid_out(run.path, planned, sweep)
    for item in planned:
        if item.skipped is None and not run.trial(item.trial.trial_id).record.exists():
            complete(run, item.trial)
    return RunResult(run)


def complete(run: RunFolder, trial: TrialSpec, refused: Failure | None = None) -> None:
    """Leave the records of a trial that completed, or of one that was `refused` memory and played again with room."""
    folder = run.trial(trial.trial_id)
    status = Status.COMPLETED if refused is None else Status.OUT_OF_DEVICE_MEMORY
    rank = predicted_rank(trial).model_copy(update={"status": status, "failure": refused})
    write_whole(folder.rank_record(0), rank.model_dump_json())
    record = trial_record(run.run_id, trial, status, failure=refused, ranks_expected=1, ranks_reported=1)
    write_whole(folder.record, record.model_dump_json())
