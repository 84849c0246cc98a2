"""Writes again what of a run that goes on is torn: what was asked of a trial, and what DeepSpeed is handed.

A folder that was copied in part, or a machine that lost power, leaves files cut short. The run has in one list what was
asked of each trial, and its plan says why trials were skipped: so nothing but measurements must be done again.
"""

from __future__ import annotations

from pathlib import Path

from zerobench.folder import write_whole
from zerobench.run.lost import renew
from zerobench.run.setup import skipped_record, write_config, write_spec
from zerobench.run.site import Site
from zerobench.spec.rules import Skip
from zerobench.store import Run, TornError, read_json


def mend_skipped(run: Run) -> None:
    """Write the files of skipped trials again that are torn or lost: list and plan know all that they say.

    Raises OSError: one cannot be written. Raises UserError: nothing says any more what one was.
    """
    for entry in run.plan.trials:
        if entry.reason is None or run.status(entry.trial_id) is not None:
            continue
        folder = run.folder.trial(entry.trial_id)
        skip = Skip(rule=entry.rule or "", reason=entry.reason)
        record = skipped_record(run.run_id, run.spec_to_run(entry.trial_id), skip)
        if _is_torn(folder.spec):
            write_spec(run, entry.trial_id)
        write_whole(folder.record, record.model_dump_json(indent=1))


def mend_trial(run: Run, trial_id: str, site: Site) -> None:
    """Make the folder of a trial that is to run readable for its ranks; what it left goes aside with its torn spec.

    Raises OSError: a file cannot be written or moved. Raises UserError: nothing says any more what the trial was.
    """
    folder = run.folder.trial(trial_id)
    if _is_torn(folder.spec):
        renew(run, run.spec_to_run(trial_id), folder, site)
        write_spec(run, trial_id)
    if _is_torn(folder.ds_config):
        write_config(run, trial_id)


def _is_torn(path: Path) -> bool:
    """Whether something lies at `path` that is no JSON object."""
    if not path.exists():
        return False
    try:
        read_json(path)
    except TornError:
        return True
    return False
