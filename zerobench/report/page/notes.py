"""What a reader of the figures must know, each sentence once, with the trials that say it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from zerobench.report.page.trials import Trial
from zerobench.report.render.grid import Column, Grid, grid
from zerobench.report.terminal.layout import listed

_MOST_NAMES = 4
Note = tuple[str, list[str]]
"""A sentence, and the labels of the trials that say it."""


def notes_grid(notes: pd.DataFrame, trials: Sequence[Trial]) -> Grid:
    """Each sentence with its trials, in the order of first sight."""
    labels = {(trial["run_id"], trial["trial_id"]): str(trial["label"]) for trial in trials}
    said: dict[str, dict[str, None]] = {}
    for run_id, trial_id, note in notes[["run_id", "trial_id", "note"]].itertuples(index=False, name=None):
        said.setdefault(note, {})[labels[run_id, trial_id]] = None
    columns: list[Column[Note]] = [
        Column("note", lambda note: note[0], is_number=False),
        Column("trials", lambda note: _where(note[1], len(trials)), is_number=False),
    ]
    caption = "What was not available, and why, and what else bears on the figures."
    return grid(caption, columns, [(note, list(names)) for note, names in said.items()])


def _where(names: Sequence[str], num_trials: int) -> str:
    return "all" if len(names) == num_trials > 1 else listed(names, _MOST_NAMES)
