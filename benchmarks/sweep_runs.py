"""A sweep run from start to end in one world, and where the files lie that belong to it."""

from __future__ import annotations

from pathlib import Path

from zerobench.cli.requests import RunRequest
from zerobench.cli.run import start
from zerobench.errors import UserError
from zerobench.report.trials import completed
from zerobench.spec.trial import Evidence
from zerobench.store import Trial, load_run


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
