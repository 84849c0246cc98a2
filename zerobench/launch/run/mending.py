"""Restore torn files of a run that is resumed: its documents, its trials' specs, their DeepSpeed configurations.

A folder copied in part, or a machine that lost power, leaves truncated files. The run has one list of all requested
trials, and its plan repeats why trials were skipped: so nothing but measurements must be repeated.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from zerobench.common.vocabulary import Status
from zerobench.config.rules.rules import Skip
from zerobench.launch.run.executor import Executor
from zerobench.launch.run.lost import renew
from zerobench.launch.run.setup import record_of_skip, write_config, write_spec
from zerobench.launch.run.trial_record import write_record
from zerobench.records.folder import RunFolder, write_whole
from zerobench.records.records import SCHEMA_VERSION, TrialRecord
from zerobench.records.store import (
    Document,
    Plan,
    PlanEntry,
    Run,
    TornError,
    is_own_script,
    parse,
    read_asked,
    read_json,
    read_record,
    read_sweep,
)


def has_torn_documents(run: RunFolder) -> bool:
    """Return True if one of the documents of a resumable run is torn.

    A run of a user's own script cannot be resumed, and its machine is not this one.
    """
    if _is_torn(run.sweep, read_sweep):
        return True
    is_own = run.sweep.exists() and is_own_script(read_sweep(run.sweep))
    return not is_own and (_is_torn(run.plan) or _is_torn(run.environment))


def mend_documents(run: RunFolder, environment: Mapping[str, Any]) -> None:
    """Rewrite the torn documents of the run; the torn ones stay as `<name>.torn`.

    The plan comes from the list of requests and the records of skipped trials. Only the sweep's name can be restored,
    and the machine becomes the one that resumes the run: `environment`.

    Raises OSError if one cannot be written. Raises UserError if no list of requests is left.
    """
    if _is_torn(run.plan):
        _write_anew(run.plan, _rebuild_plan(run).model_dump_json(indent=1))
    if _is_torn(run.sweep, read_sweep):
        _write_anew(run.sweep, yaml.safe_dump({"name": run.run_id.rpartition("_")[0] or run.run_id}))
    if _is_torn(run.environment):
        _write_anew(run.environment, json.dumps(environment, indent=1))


def _rebuild_plan(run: RunFolder) -> Plan:
    """Rebuild the plan. Raises UserError if no list of requests is left, or a skipped record is torn too."""
    asked = [{"trial_id": trial_id} for trial_id in read_asked(run)]
    if not asked:
        raise TornError(f"{run.plan}: torn or corrupt, and {run.asked.name}, which it could be made of, is not there")
    document = {"schema_version": SCHEMA_VERSION, "run_id": run.run_id, "trials": asked}
    entries = parse(document, Plan, run.asked).trials
    records = [_record(run, entry.trial_id) for entry in entries]
    run_id = next((record.run_id for record in records if record), run.run_id)
    trials = [
        PlanEntry(trial_id=entry.trial_id, rule=record.rule, reason=record.reason)
        if record is not None and record.status is Status.SKIPPED
        else entry
        for entry, record in zip(entries, records, strict=True)
    ]
    return Plan(run_id=run_id, trials=trials)


def _record(run: RunFolder, trial_id: str) -> TrialRecord | None:
    """Read the trial's record; None if it has none, or if it ran and its record is torn, so that it runs again."""
    folder = run.trial(trial_id)
    if not folder.record.exists() or (_is_torn(folder.record) and folder.rank_records()):
        return None
    return read_record(folder.record, TrialRecord)


def _write_anew(path: Path, text: str) -> None:
    path.rename(path.with_name(f"{path.name}.torn"))
    write_whole(path, text)


def mend_skipped(run: Run) -> None:
    """Rewrite torn or lost files of skipped trials from the list of requests and the plan.

    Raises OSError if one cannot be written. Raises UserError if nothing is left that describes a trial.
    """
    for entry in run.plan.trials:
        if entry.reason is None or run.status(entry.trial_id) is not None:
            continue
        folder = run.folder.trial(entry.trial_id)
        skip = Skip(rule=entry.rule or "", reason=entry.reason)
        record = record_of_skip(run.run_id, run.spec_to_run(entry.trial_id), skip)
        if _is_torn(folder.spec):
            write_spec(run, entry.trial_id)
        write_record(folder, record)


def mend_trial(run: Run, trial_id: str, executor: Executor) -> None:
    """Make the folder of a trial to run readable for its ranks; its results move aside with a torn spec.

    Raises OSError if a file cannot be written or moved. Raises UserError if nothing is left that describes the trial.
    """
    folder = run.folder.trial(trial_id)
    if _is_torn(folder.spec):
        renew(run, run.spec_to_run(trial_id), folder, executor)
        write_spec(run, trial_id)
    if _is_torn(folder.ds_config):
        write_config(run, trial_id)


def _is_torn(path: Path, read: Callable[[Path], Document] = read_json) -> bool:
    """Return True if the file at `path` exists and `read` cannot read it."""
    if not path.exists():
        return False
    try:
        read(path)
    except TornError:
        return True
    return False
