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
from zerobench.report.export.exported import ExportedTrial, categories
from zerobench.report.export.libraries import require


def write_wandb(trials: Iterable[ExportedTrial], project: str, folder: Path | None = None) -> int:
    """Send `trials` to `project` and return their number; wandb keeps its files in `folder`/wandb, or where it likes.

    Raises UserError: wandb is not installed, or refuses (no key, no network, a bad project name).
    """
    library = require("wandb", "wandb", "--wandb")
    count = 0
    for trial in trials:
        try:
            _send(trial, library, project, folder)
        except (library.Error, OSError) as error:
            raise UserError(f"--wandb: {project}: {' '.join(str(error).split())}") from None
        count += 1
    return count


def _send(trial: ExportedTrial, library: Any, project: str, folder: Path | None) -> None:
    # An id that the server knows is gone on with; offline there is none to ask, and wandb warns of the word.
    resume = "allow" if os.environ.get("WANDB_MODE", "online") in {"online", "shared"} else None
    name = f"{trial.run_id}/{trial.record.trial_id}"
    run = library.init(
        project=project,
        id=hashlib.sha256(name.encode()).hexdigest()[:16],  # wandb's ids are short and take few characters
        resume=resume,
        reinit="create_new",
        name=trial.label,
        group=trial.run_id,
        tags=[trial.spec.evidence.value, trial.record.status.value],
        config={"run_id": trial.run_id, "trial_id": trial.record.trial_id, **trial.settings},
        dir=None if folder is None else str(folder),
        settings=_settings(library),
    )
    for point in trial.steps:
        curves = {"loss": point.loss, "learning_rate": point.learning_rate, "step_time_s": point.step_s}
        run.log({name: value for name, value in curves.items() if value is not None}, step=point.step_index)
    run.summary.update(_summary(trial))
    run.finish(exit_code=0 if trial.record.status in {Status.COMPLETED, Status.SKIPPED} else 1)


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


def _summary(trial: ExportedTrial) -> dict[str, Any]:
    """Outcome, figures and peaks by category; names without dots, which wandb reads as nesting."""
    known: dict[str, Any] = {"status": trial.record.status.value}
    if trial.record.reason:
        known["reason"] = trial.record.reason
    known |= {figure.tag: value for figure, value in trial.figures.items()}
    for place, instant in trial.peaks.items():
        known |= {f"{place.value}_peak_bytes/{name}": size for name, size in categories(instant).items()}
    return known
