"""Expected steps of small models on CPU ranks against measured ones: 40 cells with real gloo.

    python benchmarks/timing/cpu_ranks.py measure             # cells that cpu_ranks.csv lacks, one after the other
    python benchmarks/timing/cpu_ranks.py measure --cells 4   # the first few of them
    python benchmarks/timing/cpu_ranks.py alone               # the run of one rank: cpu_ranks_alone.csv
    python benchmarks/timing/cpu_ranks.py rates               # what that says: zerobench/estimate/time/cpu_ranks.yaml
    python benchmarks/timing/cpu_ranks.py judge               # simulate what was measured; prints the table

One run of one rank says how fast a thread multiplies matrices, how fast it moves bytes, and how long each engine's
Python takes to come to the next operation: a single process at two sizes, and rank 0 of each engine by itself
(`solo`), at the smallest size of all. No cell's own step of two ranks is used, and nothing is fitted to the cells. What
collectives take is what gloo takes by itself (gloo_times.py). Each cell is simulated, and the order in which its engine
issued its work replayed at those rates.

A run of one rank is measured again between any two cells, so that each is judged by the machine as it was then: its
rates are slower by as much as the mean of those before and after. How much slower that was than the fastest of all such
runs is the cell's load, and by how much the two differ its unrest.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import yaml

import zerobench
from benchmarks.prediction.simulated import origin, simulate, table
from zerobench.common.errors import UserError
from zerobench.common.vocabulary import Phase, Status
from zerobench.config.models.architecture import dimensions
from zerobench.config.models.presets import resolve_model
from zerobench.config.trial.trial import TrialSpec
from zerobench.estimate.time.cpu_ranks import (
    RANKS,
    RATES_FILE,
    Between,
    Gloo,
    Thread,
    ThreadRates,
    engine_of,
    flops_of,
    replayed,
    threads,
    timed,
)
from zerobench.estimate.time.pipeline import StageTimes, passes_s
from zerobench.estimate.time.replay import Timeline
from zerobench.estimate.time.trace import Call, Host, Kernels, PageMapping, StepTrace, unpack
from zerobench.records.records import RankRecord
from zerobench.records.trials import completed, ended_trials
from zerobench.report.figures.speed import Speed, speed_of
from zerobench.report.words.cells import as_cell, as_text

FILE = Path(__file__).with_name("cpu_ranks.csv")
RESTLESS = 0.2
"""Unrest at which a cell's rates are not told well enough to judge it alone."""
ENGINES = ("zero0", "zero1", "zero2", "zero3", "fsdp")
ALONE_FILE = Path(__file__).with_name("cpu_ranks_alone.csv")
MACHINE = "one thread of an AMD EPYC with AVX-512"
_RATES_HEAD = (
    "# What `python benchmarks/timing/cpu_ranks.py rates` makes of the run of one rank (cpu_ranks_alone.csv).\n"
)
_APART = 0.05
_NOISE = 0.05
"""Of its time, by which an engine's known work may exceed it: nothing is left between its operations then."""
_LAUNCH_S = 7e-6
"""In which torch's dispatcher comes to one operation on lists of tensors, in the update of a single process."""


Row = TypeVar("Row", "MeasuredCell", "AloneRow")
Cell = Mapping[str, object]
"""Axes over the usual ones."""
REFERENCE: Cell = {"strategy": "single", "world_size": 1}
"""What is measured between any two cells."""
USUAL: Cell = {"model": "llama-10m", "micro_batch_size": 2, "sequence_length": 256}
SMALLEST: Cell = {"micro_batch_size": 1, "sequence_length": 128}
OFFLOAD: Cell = {"offload_optimizer": "cpu", "optimizer": "cpu_adam"}
ALONE: tuple[Cell, ...] = (
    REFERENCE,
    {**REFERENCE, **SMALLEST},
    *({"strategy": engine, **SMALLEST} for engine in ENGINES),
    *({"strategy": engine, **OFFLOAD, **SMALLEST} for engine in ("zero1", "zero2", "zero3")),
)
"""The run of one rank."""


def cells() -> list[Cell]:
    """40 of them, in an order in which the first few have something of all."""
    all_cells: list[Cell] = [
        {"strategy": engine, "micro_batch_size": size, "sequence_length": length}
        for engine in ENGINES
        for size in (1, 4)
        for length in (128, 512)
    ]
    all_cells += [{"strategy": engine, "gradient_accumulation_steps": 4} for engine in ENGINES]
    all_cells += [
        {"strategy": engine, **OFFLOAD, "micro_batch_size": size}
        for engine in ("zero1", "zero2", "zero3")
        for size in (1, 4)
    ]
    all_cells += [{"strategy": "pipeline", "gradient_accumulation_steps": steps} for steps in (2, 4, 8)]
    all_cells += [{"strategy": engine, "model": "gpt2-10m"} for engine in (*ENGINES, "pipeline")]
    return random.Random(17).sample(all_cells, len(all_cells))  # noqa: S311 -- the same order each time


@dataclass(frozen=True)
class MeasuredCell:
    """A cell, and the runs of one rank before and after it; seconds, medians of the timed steps of the slowest rank."""

    cell: str
    step_s: float
    least_step_s: float
    passes_before_s: float
    update_before_s: float
    passes_after_s: float
    update_after_s: float

    @property
    def passes_s(self) -> float:
        """Of the one rank while the cell ran, as far as can be told."""
        return (self.passes_before_s + self.passes_after_s) / 2

    @property
    def unrest(self) -> float:
        """By how much the later run of one rank is off the earlier one."""
        return abs(self.passes_after_s / self.passes_before_s - 1)


@dataclass(frozen=True)
class Alone:
    """A trial of one rank: what was issued, and what its passes and its update took."""

    trace: StepTrace
    passes_s: float
    update_s: float

    def issued(self, *, update: bool) -> Issued:
        """What the passes or the update consist of."""
        works = [
            self.trace.works[item.work]
            for phase, item in self.trace.in_phases()
            if isinstance(item, Kernels) and (phase == Phase.STEP) is update
        ]
        others = [item for phase, item in self.trace.in_phases() if (phase == Phase.STEP) is update]
        return Issued(
            sum(map(flops_of, works)),
            sum(work.moved_bytes for work in works) + sum(item.nbytes for item in others if isinstance(item, Host)),
            sum(item.nbytes for item in others if isinstance(item, PageMapping)),
            sum(work.launches for work in works),
        )


class Issued(NamedTuple):
    """Sums over a part of a step."""

    flops: float
    moved_bytes: int
    mapped_bytes: int
    launches: int


def calibrated(alone: Mapping[str, Alone], mapped_byte_s: float) -> ThreadRates:
    """What a thread achieves. Raises UserError: the run of one rank says no rates.

    Bytes by the single process's update; FLOPs by how much longer its passes are with more tokens, launches being the
    same; what is left of anybody's time is divided among its operations.
    """
    small, large = (alone[json.dumps(cell)] for cell in ({**REFERENCE, **SMALLEST}, REFERENCE))
    few, many, update = small.issued(update=False), large.issued(update=False), large.issued(update=True)
    byte_s = (large.update_s - update.launches * _LAUNCH_S) / update.moved_bytes
    flop_s = large.passes_s - small.passes_s - (many.moved_bytes - few.moved_bytes) * byte_s
    flop_s /= many.flops - few.flops
    between = {}
    for cell, one in alone.items():
        if cell == json.dumps(REFERENCE):
            continue
        between_s = []
        for whole_s, issued in (
            (one.passes_s, one.issued(update=False)),
            (one.update_s, one.issued(update=True)),
        ):
            known_s = issued.flops * flop_s + issued.moved_bytes * byte_s + issued.mapped_bytes * mapped_byte_s
            between_s.append((whole_s - known_s) / issued.launches)
        if min(byte_s, flop_s) <= 0 or one.issued(update=False).launches * between_s[0] < -_NOISE * one.passes_s:
            raise UserError(f"calibration: {cell} took {one.passes_s:.3g} and {one.update_s:.3g} s, which say no rates")
        passes_s, update_s = (max(0.0, seconds) for seconds in between_s)
        between[engine_of_cell(json.loads(cell))] = Between(passes_s=passes_s, update_s=update_s)
    return ThreadRates(machine=MACHINE, flop_s=flop_s, byte_s=byte_s, between=between)


def engine_of_cell(cell: Cell) -> str:
    """By whose thread a cell goes."""
    return engine_of(str(cell["strategy"]), offloads="offload_optimizer" in cell)


def expected_s(trial: TrialSpec, ranks: Sequence[RankRecord], pace: Thread) -> float:
    """The step by replay of one rank, or of each stage of a pipeline. Raises UserError: one left no trace."""
    timelines = [_replayed(trial, rank, pace) for rank in ranks]
    if trial.strategy != "pipeline":
        return timelines[0].step_s
    nbytes = 4 * trial.micro_batch_size * trial.sequence_length * (dimensions(trial.model).hidden_size or 0)
    border_s = sum(pace.call_s(Call(0, kind, RANKS, 1, nbytes)) for kind in ("send", "recv"))
    batches = trial.gradient_accumulation_steps
    passes = [timeline.total_s("compute") / batches for timeline in timelines]
    stages = [StageTimes(seconds / 3, seconds * 2 / 3, border_s) for seconds in passes]
    update_s = max(timeline.step_s - timeline.passes_s for timeline in timelines)
    return passes_s(stages, batches, forward_first=False) + update_s


def _replayed(trial: TrialSpec, rank: RankRecord, pace: Thread) -> Timeline:
    timeline = None if rank.step_trace is None else replayed(unpack(rank.step_trace), pace)
    if timeline is None:
        raise UserError(f"{trial.trial_id}: no trace of its step")
    return timeline


def run(cell: Cell) -> Speed:
    """One cell's ranks, by themselves. Raises UserError: it did not end well."""
    sweep = {
        "name": "cpu-ranks",
        "axes": {**USUAL, "world_size": RANKS, "precision": "fp32", "threads_per_rank": 1, **cell},
        "steps": {"warmup": 2, "timed": 5, "memory": 1},
    }
    with tempfile.TemporaryDirectory(prefix="zerobench-") as place:
        path = Path(place, "cpu_ranks.yaml")
        path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
        trials = list(ended_trials(zerobench.run(path, reports=place).run))
        if any(trial.record.status is Status.INTERRUPTED for trial in trials):
            raise SystemExit("stopped; what was measured is in the file")
        speeds = [speed_of(trial) for trial in trials if completed(trial)]
    if len(speeds) != 1 or speeds[0] is None:
        raise UserError(f"{json.dumps(cell)}: {'; '.join(trial.record.reason or 'not timed' for trial in trials)}")
    return speeds[0]


@dataclass(frozen=True)
class AloneRow:
    """One trial of the run of one rank; medians of its timed steps."""

    cell: str
    passes_s: float
    update_s: float


def measured() -> list[MeasuredCell]:
    """The rows of the file."""
    return _read(MeasuredCell, FILE)


def alone_rows() -> list[AloneRow]:
    """The run of one rank."""
    return _read(AloneRow, ALONE_FILE)


def measure_alone() -> None:
    """The run of one rank anew."""
    ALONE_FILE.unlink(missing_ok=True)
    for cell in ALONE:
        speed = run(cell if cell["strategy"] == "single" else {**cell, "evidence": "solo"})
        _append(ALONE_FILE, AloneRow(json.dumps(cell), *_parts(speed)))


def _read(kind: type[Row], path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [kind(as_text(row.pop("cell")), **{name: float(value) for name, value in row.items()}) for row in rows]


def measure(count: int) -> None:
    """Add so many cells to the file, each as soon as it and the run of one rank after it have ended."""
    known = {row.cell for row in measured()}
    wanted = [cell for cell in cells() if json.dumps(cell) not in known][:count]
    before = run(REFERENCE) if wanted else None
    for cell in wanted:
        try:
            speed = run(cell)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            continue
        after = run(REFERENCE)
        if before is not None:
            _append(FILE, MeasuredCell(json.dumps(cell), *_steps(speed), *_parts(before), *_parts(after)))
        before = after


def _steps(speed: Speed) -> tuple[float, float]:
    return speed.step_time_s_median, min(step.step_s for step in speed.steps)


def _parts(speed: Speed) -> tuple[float, float]:
    return (speed.forward_s or 0.0) + (speed.backward_s or 0.0), speed.step_s or 0.0


def _append(path: Path, row: MeasuredCell | AloneRow) -> None:
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(
            {name: f"{value:.4g}" if name != "cell" else as_cell(value) for name, value in asdict(row).items()}
        )


def simulated_cells(wanted: Sequence[Cell]) -> list[tuple[TrialSpec, list[RankRecord]]]:
    """Each cell's trial and its rank, or of a pipeline each stage's."""
    usual = {**USUAL, "precision": "fp32"}
    played: list[list[TrialSpec]] = []
    for cell in wanted:
        axes = {**usual, **cell}
        axes |= {"gpus_per_node": axes.pop("world_size", RANKS), "model": resolve_model(str(axes["model"]))}
        axes |= {"evidence": "simulated", "threads_per_rank": 1, "steps": {"warmup": 1, "timed": 1, "memory": 1}}
        stages = RANKS if cell["strategy"] == "pipeline" else 1
        played.append([TrialSpec.model_validate({**axes, "prediction": {"rank": rank}}) for rank in range(stages)])
    records = iter(simulate([trial for trials in played for trial in trials], jobs=1))
    return [(trials[0], [next(records) for _ in trials]) for trials in played]


def rates_of_one_rank() -> tuple[ThreadRates, float]:
    """The rates anew by the run of one rank, and how long its passes took."""
    rows = alone_rows()
    ended = simulated_cells([json.loads(row.cell) for row in rows])
    known = {
        row.cell: Alone(unpack(records[0].step_trace or ""), row.passes_s, row.update_s)
        for row, (_, records) in zip(rows, ended, strict=True)
    }
    return calibrated(known, Gloo(timed()).mapped_byte_s), known[json.dumps(REFERENCE)].passes_s


def judged(rows: Sequence[MeasuredCell]) -> Iterator[tuple[MeasuredCell, float]]:
    """Each row with the step that is expected of it."""
    rates, passes_s = rates_of_one_rank()
    paces = threads(rates, Gloo(timed()))
    ended = simulated_cells([json.loads(row.cell) for row in rows])
    for row, (spec, records) in zip(rows, ended, strict=True):
        pace = paces[engine_of_cell(json.loads(row.cell))]
        yield row, expected_s(spec, records, replace(pace, slower=row.passes_s / passes_s))


def lines(rows: Sequence[MeasuredCell]) -> list[str]:
    """The table, and the median errors of all cells and of those that were measured in peace."""
    fastest = min(min(row.passes_before_s, row.passes_after_s) for row in rows)
    errors = [(row, step_s / row.step_s - 1, step_s) for row, step_s in judged(rows)]
    texts = [
        (
            ", ".join(f"{name} {value}" for name, value in json.loads(row.cell).items()),
            f"{1e3 * step_s:.0f}",
            f"{1e3 * row.step_s:.0f}",
            f"{error:+.0%}",
            f"{row.passes_s / fastest:.1f}",
            f"{row.unrest:.0%}",
        )
        for row, error, step_s in errors
    ]
    calm = [abs(error) for row, error, _ in errors if row.unrest <= RESTLESS]
    verdict = f"{len(rows)} of {len(cells())} cells, median error {median(abs(error) for _, error, _ in errors):.1%}"
    if calm:
        verdict += f"; of the {len(calm)} with unrest up to {RESTLESS:.0%}: {median(calm):.1%}"
    told = pairs([(json.loads(row.cell), step_s, row.step_s) for row, _, step_s in errors])
    return [*table(("cell", "expected ms", "measured ms", "error", "load", "unrest"), texts), verdict, told]


def pairs(steps: Sequence[tuple[Cell, float, float]]) -> str:
    """How well it is told by how much one cell of ZeRO's is slower than another of as many tokens of one model."""
    zero = [one for one in steps if str(one[0]["strategy"]).startswith("zero")]
    alike = [(a, b) for a, b in combinations(zero, 2) if _tokens(a[0]) == _tokens(b[0])]
    off = [abs((a[1] / b[1]) / (a[2] / b[2]) - 1) for a, b in alike]
    apart = [(a, b) for a, b in alike if abs(a[2] / b[2] - 1) > _APART]
    ordered = sum((a[1] > b[1]) == (a[2] > b[2]) for a, b in apart)
    return (
        f"{len(off)} pairs, off by {median(off):.1%} at the median, {quantiles(off, n=10)[-1]:.1%} at the 90th "
        f"percentile; of the {len(apart)} that differ by more than {_APART:.0%}, {ordered} in order"
    )


def _tokens(cell: Cell) -> tuple[object, int]:
    sizes = {**USUAL, **cell}
    names = ("micro_batch_size", "sequence_length", "gradient_accumulation_steps")
    return sizes["model"], math.prod(int(str(sizes.get(name, 1))) for name in names)


def main() -> None:
    """Measure, or simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["measure", "alone", "rates", "judge"])
    parser.add_argument("--cells", type=int, default=40, help="how many cells to measure, at most")
    asked = parser.parse_args()
    if asked.what == "measure":
        measure(asked.cells)
    elif asked.what == "alone":
        measure_alone()
    elif asked.what == "rates":
        rates = rates_of_one_rank()[0].model_dump()
        RATES_FILE.write_text(f"{_RATES_HEAD}{yaml.safe_dump(rates, sort_keys=False)}", encoding="utf-8")
    else:
        print("\n".join([*origin(), *lines(measured())]))


if __name__ == "__main__":
    main()
