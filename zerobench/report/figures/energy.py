"""The energy of each trial's timed steps, from `trials.csv`: it spares reading every NVML sample again."""

import csv
from pathlib import Path

from zerobench.common.errors import UserError
from zerobench.records import store
from zerobench.report.words.cells import as_text


def energies(run: store.Run) -> dict[str, float]:
    """Joules by trial_id, of the trials that the run's tables know and whose record is no newer than the tables.

    Raises:
        UserError: `trials.csv` is not what `write_tables` wrote.

    """
    path = run.folder.path / "trials.csv"
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            cells = {as_text(row["trial_id"]): row["energy_joules"] for row in csv.DictReader(file)}
        joules = {trial_id: float(value) for trial_id, value in cells.items() if value}
    except (KeyError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: torn or corrupt: {error}; delete it; it is rebuilt from the records") from None
    return {trial_id: value for trial_id, value in joules.items() if not _is_newer(run, trial_id, path)}


def _is_newer(run: store.Run, trial_id: str, table: Path) -> bool:
    """True if the trial ran again after `table` was written, or is gone."""
    record = run.folder.trial(trial_id).record
    return not record.exists() or record.stat().st_mtime > table.stat().st_mtime
