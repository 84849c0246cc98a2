"""What the simulation says of cells, committed before a GPU has run them; and afterwards, how far it was off.

    python benchmarks/gpu_campaign/predictions.py predict benchmarks/gpu_campaign/cells.yaml
    python benchmarks/gpu_campaign/predictions.py judge benchmarks/gpu_campaign/cells.yaml reports/<run>

`predict` simulates every cell of the sweep and writes `<sweep>_predicted.csv`, which is then committed. `judge` reads
it beside a run of the same sweep on a GPU, whose ranks were real or played alone (solo), and writes
`<sweep>_judged.md`: errors by quantity, each prediction that was too small, and cells that were said to fit and did
not. It refuses predictions that are not committed, and `predict` new ones once there is a judgement. A run on emulated
GPUs is judged in the same way into ../emulated/ and hinders no prediction.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.committed import commit_of
from benchmarks.csv_rows import as_csv, from_csv
from benchmarks.gpu_campaign.cell_figures import Figure, figures_of_cells
from benchmarks.gpu_campaign.judgement import as_markdown
from benchmarks.sweep_runs import beside, run_whole
from zerobench.common.errors import UserError
from zerobench.config.trial.trial import Evidence
from zerobench.records.folder import write_whole
from zerobench.records.store import find_run, load_run
from zerobench.records.trials import completed

EMULATED = Path(__file__).resolve().parent.parent / "emulated"
"""Where judgements of emulated runs lie."""


def predict(sweep: Path, reports: Path) -> None:
    """Write the predictions. Raises UserError: there is a judgement already, or a cell could not be simulated."""
    if beside(sweep, "judged.md").exists():
        raise UserError(f"{beside(sweep, 'judged.md')}: it has been measured; predictions can no longer be made")
    trials = run_whole(sweep, Evidence.SIMULATED, reports)
    write_whole(beside(sweep, "predicted.csv"), as_csv(Figure, figures_of_cells(trials)))
    print(f"commit {beside(sweep, 'predicted.csv')} before anything is measured")


def judge(sweep: Path, run: str | None, reports: Path, *, uncommitted: bool) -> None:
    """Write the judgement of `run` beside the sweep. Raises UserError: predictions not committed, nothing to judge."""
    if run is None:
        raise UserError("RUN is missing: the run to judge")
    path = beside(sweep, "predicted.csv")
    commit = "by nobody" if uncommitted else commit_of(path)
    predicted = from_csv(Figure, path.read_text(encoding="utf-8"))
    trials = list(load_run(find_run(run, reports)).trials())
    emulated = [trial for trial in trials if trial.spec.evidence is Evidence.EMULATED]
    judged = emulated or [trial for trial in trials if trial.spec.evidence in {Evidence.MEASURED, Evidence.SOLO}]
    if not judged:
        raise UserError(f"{run}: nothing was measured, played solo or emulated in it")
    text = as_markdown(predicted, judged, figures_of_cells([trial for trial in judged if completed(trial)]), commit)
    place = beside(sweep, "judged.md")
    write_whole(EMULATED / place.name if emulated else place, text)
    print(text)


def main() -> int:
    """Do one of the two; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["predict", "judge"])
    parser.add_argument("sweep", type=Path)
    parser.add_argument("run", nargs="?", help="the run to judge")
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="where runs lie")
    parser.add_argument("--uncommitted", action="store_true", help="judge by predictions that are not committed")
    asked = parser.parse_args()
    sweep = asked.sweep.resolve()
    try:
        if asked.verb == "predict":
            predict(sweep, asked.reports)
        else:
            judge(sweep, asked.run, asked.reports, uncommitted=asked.uncommitted)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
