"""A sweep run from start to end in one world, and where the files lie that belong to it."""

from __future__ import annotations

from pathlib import Path

from zerobench.app.terminal.requests import RunRequest
from zerobench.app.terminal.run import start
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence
from zerobench.records.store import Trial, load_run
from zerobench.records.trials import completed


def run_whole(sweep: Path, world: Evidence, reports: Path) -> list[Trial]:
    """All trials of `sweep` in one world, its run's folder in `reports`. Raises UserError: one did not complete."""
    request = RunRequest(str(sweep), [f"evidence={world}"], reports=reports)
    trials = list(load_run(start(request).folder.path).trials())
    if failed := [trial for trial in trials if not completed(trial)]:
        raise UserError(f"{len(failed)} trials did not complete: {failed[0].spec.trial_id}: {failed[0].record.reason}")
    return trials


def beside(sweep: Path, ending: str) -> Path:
    """The file of that ending next to a sweep: `cells_predicted.csv` of `cells.yaml`."""
    return sweep.with_name(f"{sweep.stem}_{ending}")
