"""Run folder of a user's own script: an ordinary one with one trial, so that every report reads it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from zerobench.config.trial.trial import TrialSpec
from zerobench.launch.machine.environment import capture_environment
from zerobench.launch.run.setup import new_run_folder
from zerobench.records.folder import TRIAL_VARIABLE, RunFolder, TrialFolder, write_whole, writing
from zerobench.records.store import Plan, PlanEntry

LEDGER_ALONE = (
    "written after the memory steps: the training ended silently after them or is still running; no timed steps"
)
"""Note of records that were not replaced by final ones."""


def lay_out_own_run(reports: Path, trial: TrialSpec, asked: Mapping[str, Any], command: Sequence[str]) -> RunFolder:
    """Make a run folder under `reports` with the single trial `trial`; the plan goes last, which makes it a run.

    `asked` is the user's request and `command` the command line, both without secrets.

    Raises UserError if it cannot be written.
    """
    with writing(f"reports: {reports}"):
        run = new_run_folder(reports, trial.trial_id)
        folder = run.trial(trial.trial_id)
        folder.path.mkdir(parents=True)
        write_whole(run.sweep, yaml.safe_dump(dict(asked), sort_keys=False, allow_unicode=True))
        write_whole(run.environment, json.dumps(capture_environment(), indent=1))
        write_whole(folder.spec, trial.model_dump_json(indent=1))
        write_whole(folder.command, "".join(f"{_one_line(word)}\n" for word in command))
        plan = Plan(run_id=run.run_id, trials=[PlanEntry(trial_id=trial.trial_id)])
        write_whole(run.plan, plan.model_dump_json(indent=1))
    return run


def watched_folder() -> TrialFolder | None:
    """Return the folder made by a watcher around this process; None without one."""
    value = os.environ.get(TRIAL_VARIABLE)
    if not value:
        return None
    folder = TrialFolder(Path(value))
    try:
        trial = TrialSpec.model_validate_json(folder.spec.read_bytes())
    except (OSError, ValueError):
        return None
    return folder if trial.own is not None else None


def run_of(folder: TrialFolder) -> RunFolder:
    """Return the run that contains a trial's folder."""
    return RunFolder(folder.path.parent.parent)


def _one_line(word: str) -> str:
    """Escape an argument to fit on one line."""
    return word.replace("\\", "\\\\").replace("\n", "\\n") if "\n" in word else word
