"""`zerobench tune` against a full grid of sixty, on twelve models and GPUs: writes figures.csv.

    python -m benchmarks.tune.grid formula REPORTS       # a minute
    python -m benchmarks.tune.grid emulated REPORTS      # half an hour on two idle cores

The expected time of each of the sixty is worked out. Whether they fit is tried in the world that is named, in the order
of their times by formula, until those that follow are slower than the fastest that does: they need no trial. Nor do
those that by formula need FAR_TOO_LARGE times the memory there is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.csv_rows import as_csv, from_csv
from benchmarks.tune.cases import CASES, HOST_MEMORY, SHARE, Case, grid
from zerobench.app.search.formula import formula_row
from zerobench.app.search.plan import Plan, read_plan
from zerobench.app.search.plan_request import PlanRequest
from zerobench.app.search.played_rounds import Rounds
from zerobench.app.search.searched import WIDTH, searched
from zerobench.launch.run.observer import Observer
from zerobench.report.figures.trial import TrialFigures

FAR_TOO_LARGE = 1.3
FILE = Path(__file__).with_name("figures.csv")


@dataclass(frozen=True)
class Figure:
    """One of a case's sixty, or what `tune` found (`of` says which)."""

    case: str
    world: str
    of: str
    strategy: str
    offload_optimizer: str
    offload_param: str
    checkpointing: str
    micro_batch: int
    ds_config: str
    tried: str
    """Whether in that world; else its room is by formula."""
    room: str
    """Share of the scarcer of device and host memory that is left; below zero it does not fit."""
    expected_step_ms: str


def figure(case: Case, world: str, of: str, row: TrialFigures, *, tried: bool) -> Figure:
    """A prediction as the file has it."""
    spec = row.spec
    return Figure(
        case.name,
        world,
        of,
        spec.strategy,
        spec.offload_optimizer.value,
        spec.offload_param.value,
        str(spec.activation_checkpointing).lower(),
        spec.micro_batch_size,
        " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in spec.ds_config.items()),
        str(tried).lower(),
        f"{row.room:.4f}",
        f"{1e3 * row.expected.step_s:.2f}" if row.expected is not None else "",
    )


def asked(case: Case, world: str) -> Plan:
    """What `zerobench tune` is asked."""
    request = PlanRequest(
        model=case.model,
        gpus=str(case.gpus),
        gpu=case.gpu,
        host_memory=HOST_MEMORY,
        sequence_length=str(case.sequence_length),
        global_batch=str(SHARE * case.gpus),
        tunes=True,
        evidence=world,
    )
    return read_plan(request)


def of_grid(case: Case, world: str, reports: Path) -> Iterator[Figure]:
    """All sixty, the fastest first."""
    rows = [row for trial in grid(case) if (row := formula_row(trial, case.cluster)) is not None]
    rows.sort(key=_step_s)
    rounds = Rounds(asked(case, world), reports, Observer())
    best_s = float("inf")
    for row in rows:
        if _step_s(row) > best_s or 1 - row.room > FAR_TOO_LARGE:
            yield figure(case, world, "grid", row, tried=False)
            continue
        made: Sequence[TrialFigures] = rounds.make([row])
        best_s = min([best_s, *(_step_s(one) for one in made if one.has_room)])
        yield figure(case, world, "grid", made[0] if made else row, tried=True)


def _step_s(row: TrialFigures) -> float:
    return row.expected.step_s if row.expected is not None else float("inf")


def of_tune(case: Case, world: str, reports: Path) -> Iterator[Figure]:
    """What tune tried, its choice first."""
    plan = asked(case, world)
    search = searched(plan, Rounds(plan, reports, Observer()), Observer(), WIDTH)
    if search.best is None:
        return
    yield figure(case, world, "tune", search.best, tried=True)
    for cell in search.cells:
        for row in cell.tried.values():
            if row is not search.best:
                yield figure(case, world, "tune tried", row, tried=True)


def main() -> None:
    """Predict all cases in the world that is named and replace its rows in the file, anew after each case."""
    world, reports = sys.argv[1], Path(sys.argv[2])
    kept = [row for row in (committed() if FILE.exists() else []) if row.world != world]
    for case in CASES:
        kept += [*of_tune(case, world, reports), *of_grid(case, world, reports)]
        FILE.write_text(as_csv(Figure, kept), encoding="utf-8")
        sys.stdout.write(f"{case.name}\n")
        sys.stdout.flush()


def committed() -> list[Figure]:
    """The figures of the file."""
    return from_csv(Figure, FILE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
