"""The choice of `zerobench tune --measure 4` beside a full grid of forty, all measured on two CPU ranks.

    python -m benchmarks.tune.measured_grid REPORTS    # half an hour on two idle cores

A small Llama at a global batch of sixteen: five stages and offloads, checkpointing off and on, four micro batches. Then
the best of the forty and the choice of `tune`, which measured a tenth as many, run in turn, so that both meet the same
machine. Writes measured_grid.csv, with the machine's load beside each.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.csv_rows import as_csv
from zerobench.app.search.formula import formula_row
from zerobench.app.search.measured_best import MeasuredRow, measure, measure_best
from zerobench.app.search.plan import read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.search.played_rounds import Rounds
from zerobench.app.search.searched import WIDTH, searched
from zerobench.config.derived.cluster import Cluster, read_cluster
from zerobench.config.sweep.plan import cells, read_work
from zerobench.config.trial.trial import Offload
from zerobench.launch.machine.this_machine import detect_machine
from zerobench.launch.run.observer import Observer
from zerobench.report.figures.trial import TrialFigures

FILE = Path(__file__).with_name("measured_grid.csv")
MODEL, RANKS, GPU = "llama-10m", 2, "L40S"
SEQUENCE_LENGTH, GLOBAL_BATCH = 128, 16
SHARE = GLOBAL_BATCH // RANKS
PLACES = (
    ("zero0", Offload.NONE),
    ("zero1", Offload.NONE),
    ("zero2", Offload.NONE),
    ("zero3", Offload.NONE),
    ("zero3", Offload.CPU),
)
MICRO_BATCHES = (1, 2, 4, 8)
MEASURED = 4
"""By `tune`: a tenth of the grid."""
TURNS = 3
WITHIN = 0.05
GRID, TUNE, BEST_AGAIN, CHOICE_AGAIN = "grid", "tune", "best of the grid, in turn", "choice of tune, in turn"


@dataclass(frozen=True)
class Figure:
    """One that was measured; `of` says for what."""

    of: str
    strategy: str
    offload_optimizer: str
    checkpointing: str
    micro_batch: int
    ds_config: str
    step_ms: str
    """Median of the timed steps of the slowest rank; empty where it did not complete."""
    load: str
    """Of the machine, the mean of the minute before the run ended."""


def figure(of: str, measured: MeasuredRow) -> Figure:
    """As the file has it."""
    spec, speed = measured.row.spec, measured.speed
    return Figure(
        of,
        spec.strategy,
        spec.offload_optimizer.value,
        str(spec.activation_checkpointing).lower(),
        spec.micro_batch_size,
        " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in spec.ds_config.items()),
        "" if speed is None else f"{1e3 * speed.step_time_s_median:.1f}",
        f"{os.getloadavg()[0]:.1f}",
    )


def grid(cluster: Cluster) -> Iterator[TrialFigures]:
    """All forty; what is not varied is DeepSpeed's default."""
    work = read_work({"model": MODEL, "sequence_length": str(SEQUENCE_LENGTH)})
    planned = [item.trial for item in cells(work, cluster) if item.skipped is None]
    trials = {
        (trial.strategy, trial.offload_optimizer): trial for trial in planned if trial.offload_param is Offload.NONE
    }
    for place, checkpointing, micro in itertools.product(PLACES, (False, True), MICRO_BATCHES):
        batch = {"micro_batch_size": micro, "gradient_accumulation_steps": SHARE // micro}
        varied = trials[place].model_copy(update={"activation_checkpointing": checkpointing, **batch})
        if (row := formula_row(varied, cluster)) is not None:
            yield row


def asked() -> PlanRequest:
    """What `zerobench tune` is asked."""
    return PlanRequest(
        model=MODEL,
        gpus=str(RANKS),
        gpus_per_node=str(RANKS),
        gpu=GPU,
        sequence_length=str(SEQUENCE_LENGTH),
        global_batch=str(GLOBAL_BATCH),
        tunes=True,
        evidence="formula",
    )


def main(reports: Path) -> None:
    """Measure all, and write the file anew after each part."""
    machine, cluster = detect_machine(), read_cluster(gpu=GPU, gpus=str(RANKS), gpus_per_node=str(RANKS))
    figures: list[Figure] = []

    def run(of: str, rows: Sequence[TrialFigures]) -> TrialFigures:
        done = measure(rows, machine, reports, Observer())
        keep(of, done.rows)
        if done.best is None:
            raise SystemExit(f"{of}: none completed; see {done.run}")
        return done.best

    def keep(of: str, measured: Sequence[MeasuredRow]) -> None:
        figures.extend(figure(of, row) for row in measured)
        FILE.write_text(as_csv(Figure, figures), encoding="utf-8")
        sys.stdout.write("\n".join(one.text for one in measured) + "\n")
        sys.stdout.flush()

    plan = read_plan(asked())
    tuned = measure_best(
        searched(plan, Rounds(plan, reports, Observer()), Observer(), WIDTH), MEASURED, machine, reports, Observer()
    )
    keep(TUNE, tuned.rows)
    if tuned.best is None:
        raise SystemExit(f"{TUNE}: none completed; see {tuned.run}")
    best = run(GRID, list(grid(cluster)))
    for _ in range(TURNS):
        run(BEST_AGAIN, [best])
        run(CHOICE_AGAIN, [tuned.best])
    sys.stdout.write(verdict(figures) + "\n")


def slower(figures: Sequence[Figure]) -> float:
    """By how much the choice of `tune` is slower than the best of the grid, as a share, both measured in turn."""
    best, choice = (
        median(float(row.step_ms) for row in figures if row.of == of and row.step_ms)
        for of in (BEST_AGAIN, CHOICE_AGAIN)
    )
    return choice / best - 1


def verdict(figures: Sequence[Figure]) -> str:
    """One line."""
    trials = {of: sum(row.of == of for row in figures) for of in (GRID, TUNE)}
    word = "within" if slower(figures) <= WITHIN else "MORE THAN"
    return (
        f"tune measured {trials[TUNE]} where the grid has {trials[GRID]}: {100 * slower(figures):+.1f} % of the best "
        f"step, {word} {100 * WITHIN:.0f} %"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
