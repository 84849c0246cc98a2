"""Twenty cells that are predicted before they are measured: held_out.yaml.

    python benchmarks/prediction/held_out.py predict    # simulates; writes held_out_predicted.csv, to be committed
    python benchmarks/prediction/held_out.py measure    # measures; joins with the committed predictions; prints

`predict` runs the simulated trials alone, `measure` the measured ones alone; figures meet by config_hash. `measure`
refuses predictions that are not committed, and `predict` refuses to make new ones once there are measurements: nothing
can be tuned in between. `measure` writes held_out_measured.csv, and the table as it is printed to held_out.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.committed import commit_of
from benchmarks.csv_rows import as_csv, from_csv
from benchmarks.prediction.held_out_table import Figure, error_lines, figures, join
from benchmarks.prediction.simulated import origin
from benchmarks.sweep_runs import beside, run_whole
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence
from zerobench.records.folder import write_whole

RANK = 0
"""The rank that is predicted."""


def run(sweep: Path, world: Evidence, reports: Path) -> list[Figure]:
    """The figures of the sweep in one world. Raises UserError: a trial did not complete."""
    trials = run_whole(sweep, world, reports)
    return [figure for trial in trials for figure in figures(trial.spec, trial.ranks[RANK])]


def predict(sweep: Path, reports: Path) -> None:
    """Write the predictions. Raises UserError: there are measurements already."""
    if beside(sweep, "measured.csv").exists():
        raise UserError(f"{beside(sweep, 'measured.csv')}: it has been measured; predictions can no longer be made")
    write_whole(beside(sweep, "predicted.csv"), as_csv(Figure, run(sweep, Evidence.SIMULATED, reports)))
    print(f"commit {beside(sweep, 'predicted.csv')} before anything is measured")


def measure(sweep: Path, reports: Path, *, uncommitted: bool) -> None:
    """Measure, and write the measurements and the table of errors. Raises UserError: predictions not committed."""
    path = beside(sweep, "predicted.csv")
    committed = "nobody has committed" if uncommitted else f"committed {commit_of(path)}"
    predicted = from_csv(Figure, path.read_text(encoding="utf-8"))
    measured = run(sweep, Evidence.MEASURED, reports)
    write_whole(beside(sweep, "measured.csv"), as_csv(Figure, measured))
    errors = error_lines(join(predicted, measured))
    intro = (
        f"{len({row.config_hash for row in measured})} cells of {sweep.name}, rank {RANK}, predictions {committed}, "
        "measured after. Totals of the device in each phase; error: (predicted - measured) / measured; median: of the "
        "absolute errors; 0: equal to the byte."
    )
    text = "\n".join(["# Predictions of shapes that nothing was tuned on", "", *origin(), intro, "", *errors])
    write_whole(beside(sweep, "measured.csv").with_name(f"{sweep.stem}.md"), text)
    print(text)


def main() -> int:
    """Do one of the two; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["predict", "measure"])
    parser.add_argument("--sweep", type=Path, default=Path(__file__).with_suffix(".yaml"))
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="where the run's folder lands")
    parser.add_argument("--uncommitted", action="store_true", help="measure beside predictions that are not committed")
    asked = parser.parse_args()
    sweep = asked.sweep.resolve()
    try:
        if asked.verb == "predict":
            predict(sweep, asked.reports)
        else:
            measure(sweep, asked.reports, uncommitted=asked.uncommitted)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
