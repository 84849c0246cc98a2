"""The largest micro batch that fits on eight H200 by formula, and by simulation: formula_frontier.csv, a row at a time.

    python benchmarks/prediction/formula_frontier.py [--again]

Both searches are those of `plan --frontier`: to 1 %, 10 % of the GPU kept free. The simulated one begins where the
formula ends. Rows that are there are kept, so that a call that was cut short goes on; `--again` makes all anew, for
after the formulas or the simulated world have changed. All rows take some five minutes of two idle cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.csv_rows import as_csv, from_csv
from benchmarks.prediction.simulated import GPU, attempt
from zerobench.app.search.rounds import WITHIN
from zerobench.config.derived.cluster import read_cluster
from zerobench.config.derived.frontier import Frontier, Search, search, search_together, slope
from zerobench.config.derived.frontier_axes import MOST_SEQUENCES
from zerobench.config.models.presets import resolve_model
from zerobench.config.sweep.plan import cells
from zerobench.config.trial.trial import Evidence, Offload, StepsSpec, TrialSpec
from zerobench.estimate.memory import formula_record
from zerobench.records.folder import write_whole
from zerobench.records.records import RankRecord
from zerobench.report.figures.capacity import device_need
from zerobench.report.figures.fit import ROOM

FOUND = Path(__file__).with_name("formula_frontier.csv")
CLUSTER = read_cluster(gpu=GPU, gpus="8", host_memory="2TB")
JOBS = 2
SEQUENCE_LENGTH = 1024
_SHAPE: dict[str, object] = {"num_layers": 3, "hidden_size": 512, "num_heads": 8, "vocab_size": 4096}
_LLAMA: dict[str, object] = {
    "family": "llama",
    "num_layers": 12,
    "hidden_size": 2048,
    "num_heads": 16,
    "vocab_size": 32000,
}
MODELS: dict[str, dict[str, object]] = {
    "small-llama (3 layers of 512; vocabulary 4096)": {"name": "small-llama", "family": "llama"} | _SHAPE,
    "small-gpt2 (3 layers of 512; vocabulary 4096)": {"name": "small-gpt2", "family": "gpt2"} | _SHAPE,
    "llama (12 layers of 2048; vocabulary 32000)": {"name": "llama"} | _LLAMA,
}
_OFFLOADS = {
    "none": (Offload.NONE, Offload.NONE),
    "cpu": (Offload.CPU, Offload.NONE),
    "cpu and parameters": (Offload.CPU, Offload.CPU),
}


@dataclass(frozen=True)
class Row:
    """One configuration."""

    model: str
    stage: int
    offload: str
    activation_checkpointing: str
    formula_micro_batch: int
    simulated_micro_batch: int


Cell = tuple[str, int, str, str]
"""The first four columns."""


def asked() -> Iterator[Cell]:
    """Every stage with and without checkpointing, and two with offloading."""
    for model in MODELS:
        yield from ((model, stage, "none", again) for stage in range(4) for again in ("false", "true"))
        yield (model, 2, "cpu", "false")
        yield (model, 3, "cpu and parameters", "true")


def trial_of(cell: Cell) -> TrialSpec:
    """The trial as `plan` makes it."""
    model, stage, offload, again = cell
    work = {
        "model": resolve_model(MODELS[model]),
        "sequence_length": SEQUENCE_LENGTH,
        "activation_checkpointing": again == "true",
    }
    possible = (item.trial for item in cells(work, CLUSTER, (stage,)) if item.skipped is None)
    trial = next(
        candidate
        for candidate in possible
        if (candidate.offload_optimizer, candidate.offload_param) == _OFFLOADS[offload]
    )
    return trial.model_copy(update={"steps": StepsSpec(warmup=0, memory=1, timed=1)})


def rows_of(found: Sequence[Cell]) -> Iterator[Row]:
    """The row of each cell as its search ends; the next tries of all are simulated together.

    Raises UserError: a trial failed for another reason than memory.
    """
    trials = {cell: trial_of(cell) for cell in found}
    by_formula = {cell: _by_formula(trial) for cell, trial in trials.items()}
    searches = {
        cell: _search(_largest(frontier) or 1, slope(frontier.tries, _capacity()))
        for cell, frontier in by_formula.items()
    }
    values = {cell: next(search) for cell, search in searches.items()}
    while values:
        tries = [_at(trials[cell], value, Evidence.SIMULATED) for cell, value in values.items()]
        needs = [None if isinstance(rank, str) else _need(rank) for rank in attempt(tries, JOBS)]
        following = {}
        for cell, need in zip(values, needs, strict=True):
            try:
                following[cell] = searches[cell].send(need)
            except StopIteration as end:
                yield Row(*cell, _largest(by_formula[cell]), _largest(end.value))
        values = following


def largest_by_formula(trial: TrialSpec) -> int:
    """The largest micro batch that fits by formula."""
    return _largest(_by_formula(trial))


def _by_formula(trial: TrialSpec) -> Frontier:
    def needs(asked: Mapping[int, int]) -> dict[int, int | None]:
        return {key: _need(formula_record(_at(trial, value, Evidence.FORMULA))) for key, value in asked.items()}

    return search_together({0: _search(1)}, needs)[0]


def _largest(frontier: Frontier) -> int:
    return 0 if frontier.largest is None else frontier.largest.value


def _capacity() -> int:
    return int((1 - ROOM) * CLUSTER.device_memory_bytes)


def _search(start: int, steep: float | None = None) -> Search:
    return search(_capacity(), start=start, most=MOST_SEQUENCES, within=WITHIN, bytes_per_step=steep)


def _at(trial: TrialSpec, micro_batch: int, evidence: Evidence) -> TrialSpec:
    return trial.model_copy(update={"micro_batch_size": micro_batch, "evidence": evidence})


def _need(rank: RankRecord) -> int | None:
    ranks: Any = SimpleNamespace(ranks=(rank,))
    need = device_need(ranks)
    return None if need is None else need.total_bytes


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="make every row anew")
    again = parser.parse_args().again
    rows = {} if again or not FOUND.exists() else {_cell(row): row for row in _kept()}
    cells_asked = list(asked())
    for row in rows_of([cell for cell in cells_asked if cell not in rows]):
        rows[_cell(row)] = row
        write_whole(FOUND, as_csv(Row, (rows[cell] for cell in cells_asked if cell in rows)))
        off = row.formula_micro_batch / row.simulated_micro_batch - 1
        print(f"{row.formula_micro_batch:6} {row.simulated_micro_batch:6} {off:+7.1%}  {_cell(row)}", flush=True)
    return 0


def _kept() -> list[Row]:
    return from_csv(Row, FOUND.read_text(encoding="utf-8"))


def _cell(row: Row) -> Cell:
    return row.model, row.stage, row.offload, row.activation_checkpointing


if __name__ == "__main__":
    sys.exit(main())
