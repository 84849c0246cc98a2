"""The simulated world against the emulated one: peaks, and what torch's allocator reserves, to the byte.

    python benchmarks/emulated/against_simulated.py [--few]

Cells are those of ../prediction (61, on an H200 instead of CPU ranks), of cells.yaml (38) and of strategies.yaml (10).
The emulated world's figures are those of torch's own caching allocator. Writes against_simulated.csv, a row for each
phase of each cell, and prints what must hold: allocated peaks within 0.5 %, reserved within 2 %, and no more than 1 %
of a peak without a name.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.csv_rows import as_csv
from benchmarks.prediction.simulated import simulate
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Category, Place
from zerobench.config.sweep.expand import expand
from zerobench.config.sweep.sweep import load_sweep
from zerobench.config.trial.trial import Evidence, TrialSpec
from zerobench.launch.machine.this_machine import detect_machine
from zerobench.records.folder import write_whole
from zerobench.records.records import DeviceMemory, RankRecord

HERE = Path(__file__).resolve().parent
SWEEPS = (
    HERE.parent / "prediction" / "tuned.yaml",
    HERE.parent / "prediction" / "held_out.yaml",
    HERE / "cells.yaml",
    HERE / "strategies.yaml",
)
GPU = "h200"
PEAK_GOAL, RESERVED_GOAL, UNATTRIBUTED_GOAL = 0.005, 0.02, 0.01
FEW = 17
"""Every so many cells are taken for a quick look."""


@dataclass(frozen=True)
class Row:
    """One phase of one cell; sizes in bytes."""

    cell: str
    step: str
    phase: str
    emulated_peak: int
    simulated_peak: int
    emulated_reserved: int
    simulated_reserved: int
    emulated_unattributed: int
    simulated_unattributed: int

    @property
    def peak_error(self) -> float:
        """Of the simulated world, as a fraction of the emulated one's."""
        return self.simulated_peak / self.emulated_peak - 1

    @property
    def reserved_error(self) -> float:
        """The same of what is reserved."""
        return self.simulated_reserved / self.emulated_reserved - 1

    @property
    def unattributed(self) -> float:
        """The larger of both worlds' bytes without a name, as a fraction of the peak."""
        return max(abs(self.emulated_unattributed), abs(self.simulated_unattributed)) / self.emulated_peak


def cells(sweeps: Sequence[Path] = SWEEPS) -> list[TrialSpec]:
    """Every work of the sweeps, once, in the simulated world on a GPU. Raises UserError: a rule refuses one."""
    trials: dict[tuple[str, int], TrialSpec] = {}
    for sweep in sweeps:
        planned = expand(load_sweep(sweep, [f"evidence={Evidence.SIMULATED}", f"gpu={GPU}"]), detect_machine())
        for item in planned:
            if item.skipped is not None:
                raise UserError(f"{item.trial.trial_id}: {item.skipped.reason}")
            trials.setdefault((item.trial.config_hash, item.trial.prediction.rank), item.trial)
    return list(trials.values())


def compare(trials: Sequence[TrialSpec], jobs: int = 2) -> list[Row]:
    """A row for each phase of each of `trials`, played in both worlds. Raises UserError: one did not complete."""
    both = [
        trial.model_copy(update={"evidence": world})
        for world in (Evidence.EMULATED, Evidence.SIMULATED)
        for trial in trials
    ]
    records = simulate(both, jobs)
    pairs = zip(records[: len(trials)], records[len(trials) :], strict=True)
    return [
        row
        for trial, (emulated, simulated) in zip(trials, pairs, strict=True)
        for row in rows_of(trial, emulated, simulated)
    ]


def rows_of(trial: TrialSpec, emulated: RankRecord, simulated: RankRecord) -> list[Row]:
    cell = trial.trial_id.replace(f"-{Evidence.SIMULATED}", "").removesuffix("-r0")
    others = {(memory.step, memory.phase): memory for memory in simulated.device_memory}
    return [
        Row(
            cell=cell,
            step=real.step.value,
            phase=real.phase.value,
            emulated_peak=real.peak_allocated_bytes,
            simulated_peak=others[real.step, real.phase].peak_allocated_bytes,
            emulated_reserved=real.peak_reserved_bytes,
            simulated_reserved=others[real.step, real.phase].peak_reserved_bytes,
            emulated_unattributed=_unattributed(emulated, real),
            simulated_unattributed=_unattributed(simulated, real),
        )
        for real in emulated.device_memory
    ]


def _unattributed(rank: RankRecord, at: DeviceMemory) -> int:
    rows = [row for row in rank.memory if (row.step, row.phase, row.place) == (at.step, at.phase, Place.DEVICE)]
    return sum(row.at_peak_bytes or 0 for row in rows if row.category is Category.UNATTRIBUTED)


def lines(rows: Sequence[Row]) -> list[str]:
    """What the rows come to, and those that miss a goal."""
    num_cells = len({row.cell for row in rows})
    sentences = [f"{num_cells} cells, {len(rows)} phases; errors of the simulated world against torch's own allocator"]
    for name, error, goal in (
        ("allocated peak", [abs(row.peak_error) for row in rows], PEAK_GOAL),
        ("reserved peak", [abs(row.reserved_error) for row in rows], RESERVED_GOAL),
        ("without a name", [row.unattributed for row in rows], UNATTRIBUTED_GOAL),
    ):
        sentences.append(
            f"{name}: {sum(size == 0 for size in error)} exact, median {statistics.median(error):.4%}, "
            f"largest {max(error):.3%} (goal {goal:.1%})"
        )
    return sentences + [f"missed: {row}" for row in rows if misses(row)]


def misses(row: Row) -> bool:
    """Whether a row is beyond a goal."""
    return (
        abs(row.peak_error) > PEAK_GOAL
        or abs(row.reserved_error) > RESERVED_GOAL
        or row.unattributed > UNATTRIBUTED_GOAL
    )


def main() -> int:
    """Play all cells; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", action="store_true", help=f"one of {FEW} cells, and write nothing")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    try:
        chosen = cells()[:: FEW if asked.few else 1]
        rows = compare(chosen, asked.jobs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not asked.few:
        write_whole(HERE / "against_simulated.csv", as_csv(Row, rows))
    print("\n".join(lines(rows)))
    return int(any(misses(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
