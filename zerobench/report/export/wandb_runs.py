"""Trials as runs of Weights & Biases, one each, grouped by the run of the sweep.

    WANDB_MODE=offline zerobench export RUN --wandb PROJECT

The mode, the server and the key are wandb's own affair (WANDB_MODE, WANDB_BASE_URL, `wandb login`). What it would add
of the exporting process is turned off: that process's git, console, machine and load say nothing of the trial's. A
trial always has the same id, so that a second export joins the first and makes no second run.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Status
from zerobench.report.export.exported import ExportRow, categories
from zerobench.report.export.libraries import require


def write_wandb(trials: Iterable[ExportRow], project: str, folder: Path | None = None) -> int:
    """Send `trials` to `project` and return their number; wandb keeps its files in `folder`/wandb, or where it likes.

    Raises UserError: wandb is not installed, or refuses (no key, no network, a bad project name).
    """
    library = require("wandb", "wandb", "--wandb")
    count = 0
    for row in trials:
        try:
            _send(row, library, project, folder)
        except (library.Error, OSError) as error:
            raise UserError(f"--wandb: {project}: {' '.join(str(error).split())}") from None
        count += 1
    return count


def _send(row: ExportRow, library: Any, project: str, folder: Path | None) -> None:
    # An id that the server knows is gone on with; offline there is none to ask, and wandb warns of the word.
    resume = "allow" if os.environ.get("WANDB_MODE", "online") in {"online", "shared"} else None
    name = f"{row.trial.run_id}/{row.trial.trial_id}"
    run = library.init(
        project=project,
        id=hashlib.sha256(name.encode()).hexdigest()[:16],  # wandb's ids are short and take few characters
        resume=resume,
        reinit="create_new",
        name=row.trial.label,
        group=row.trial.run_id,
        tags=[row.trial.spec.evidence.value, row.trial.status.value],
        config={"run_id": row.trial.run_id, "trial_id": row.trial.trial_id, **row.settings},
        dir=None if folder is None else str(folder),
        settings=_settings(library),
    )
    for point in row.steps:
        curves = {"loss": point.loss, "learning_rate": point.learning_rate, "step_time_s": point.step_s}
        run.log({name: value for name, value in curves.items() if value is not None}, step=point.step_index)
    run.summary.update(_summary(row))
    run.finish(exit_code=0 if row.trial.status in {Status.COMPLETED, Status.SKIPPED} else 1)


def _settings(library: Any) -> Any:
    return library.Settings(
        console="off",
        disable_git=True,
        save_code=False,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def _summary(row: ExportRow) -> dict[str, Any]:
    """Outcome, figures and peaks by category; names without dots, which wandb reads as nesting."""
    known: dict[str, Any] = {"status": row.trial.status.value}
    if row.trial.reason:
        known["reason"] = row.trial.reason
    known |= {figure.tag: value for figure, value in row.figures.items()}
    for place, instant in row.peaks.items():
        known |= {f"{place.value}_peak_bytes/{name}": size for name, size in categories(instant).items()}
    return known
