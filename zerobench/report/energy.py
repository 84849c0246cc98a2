"""The energy of each trial's timed steps, from `trials.csv`: it spares reading every NVML sample again."""

from __future__ import annotations

import csv

from zerobench import store


def energies(run: store.Run) -> dict[str, float]:
    """Joules by trial_id, of the trials that the run's tables know and whose record is no newer than the tables."""
    path = run.folder.path / "trials.csv"
    if not path.is_file():
        return {}
    written = path.stat().st_mtime
    with path.open(encoding="utf-8", newline="") as file:
        joules = {row["trial_id"]: row["energy_joules"] for row in csv.DictReader(file)}
    return {
        trial_id: float(value)
        for trial_id, value in joules.items()
        if value and run.folder.trial(trial_id).record.stat().st_mtime <= written
    }
