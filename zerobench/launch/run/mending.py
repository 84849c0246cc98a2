"""Writes again what of a run that goes on is torn: its own documents, what was asked of a trial, what DeepSpeed gets.

A folder that was copied in part, or a machine that lost power, leaves files cut short. The run has in one list what was
asked of each trial, and its plan says why trials were skipped, as their records do: so nothing but measurements must be
done again.
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
    """Whether one of the run's own documents is there and torn, of a run that can go on.

    With a user's own script none does, so that its machine is not the one at hand.
    """
    if _is_torn(run.sweep, read_sweep):
        return True
    is_own = run.sweep.exists() and is_own_script(read_sweep(run.sweep))
    return not is_own and (_is_torn(run.plan) or _is_torn(run.environment))


def mend_documents(run: RunFolder, environment: Mapping[str, Any]) -> None:
    """Write the run's own documents again that are torn, which stay beside them as `<name>.torn`.

    The plan is made of the list of what was asked and of the records of skipped trials. Of the sweep only its name is
    known then, and the machine is the one that goes on with the run: `environment`.

    Raises OSError: one cannot be written. Raises UserError: no list says any more what was asked.
    """
    if _is_torn(run.plan):
        _write_anew(run.plan, _plan_as_asked(run).model_dump_json(indent=1))
    if _is_torn(run.sweep, read_sweep):
        _write_anew(run.sweep, yaml.safe_dump({"name": run.run_id.rpartition("_")[0] or run.run_id}))
    if _is_torn(run.environment):
        _write_anew(run.environment, json.dumps(environment, indent=1))


def _plan_as_asked(run: RunFolder) -> Plan:
    """Raises UserError: no list says any more what was asked, or the record of a skipped trial is torn, too."""
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
    """How the trial ended; None: it did not, or it ran and its record is torn, so that it runs again."""
    folder = run.trial(trial_id)
    if not folder.record.exists() or (_is_torn(folder.record) and folder.rank_records()):
        return None
    return read_record(folder.record, TrialRecord)


def _write_anew(path: Path, text: str) -> None:
    path.rename(path.with_name(f"{path.name}.torn"))
    write_whole(path, text)


def mend_skipped(run: Run) -> None:
    """Write the files of skipped trials again that are torn or lost: list and plan know all that they say.

    Raises OSError: one cannot be written. Raises UserError: nothing says any more what one was.
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
    """Make the folder of a trial that is to run readable for its ranks; what it left goes aside with its torn spec.

    Raises OSError: a file cannot be written or moved. Raises UserError: nothing says any more what the trial was.
    """
    folder = run.folder.trial(trial_id)
    if _is_torn(folder.spec):
        renew(run, run.spec_to_run(trial_id), folder, executor)
        write_spec(run, trial_id)
    if _is_torn(folder.ds_config):
        write_config(run, trial_id)


def _is_torn(path: Path, read: Callable[[Path], Document] = read_json) -> bool:
    """Whether something lies at `path` that is no JSON object, or none of what `read` reads."""
    if not path.exists():
        return False
    try:
        read(path)
    except TornError:
        return True
    return False
